"""Repository agents along the life of a model: which of them is told what, in which order, and what they may do."""

from __future__ import annotations

import gzip
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from repository.agents.interface import AgentModel, RepositoryAgent
from repository.agents.registry import AgentRegistry
from repository.model_config import ModelConfig, ModelRepositoryAgents
from repository.model_config import RepositoryAgent as RepositoryAgentConfig
from repository.pbtxt import format_pbtxt
from tests.actors.core.test_server_core import PBTXT, add_model
from tests.actors.fakes import FakeBackend, fake_backend, request
from tests.e2e.client import add_sub_inputs
from tests.e2e.repository import add_add_sub
from tests.examples.loading import load_example


class Recorder(RepositoryAgent):
    """Notes what it is told. Parameters: `name`, and the action in which it `fails`, and the folder it `gives`."""

    told: list[str]

    def __init__(self, parameters: Mapping[str, str]) -> None:
        super().__init__(parameters)
        if "bad" in parameters:
            raise ValueError("'bad' is no parameter of mine")

    def _note(self, action: str, model: AgentModel) -> None:
        self.told.append(f"{self.parameters['name']} {action} {model.directory.name}")
        if self.parameters.get("fails") == action:
            raise RuntimeError(f"cannot {action}")

    def load(self, model: AgentModel) -> Path | None:
        self._note("load", model)
        return model.directory.parent.parent / self.parameters["gives"] if "gives" in self.parameters else None

    def load_complete(self, model: AgentModel) -> None:
        self._note("load_complete", model)

    def load_fail(self, model: AgentModel) -> None:
        self._note("load_fail", model)

    def unload(self, model: AgentModel) -> None:
        self._note("unload", model)

    def unload_complete(self, model: AgentModel) -> None:
        self._note("unload_complete", model)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def registry(told: list[str]) -> AgentRegistry:
    return AgentRegistry({"recorder": type("TestRecorder", (Recorder,), {"told": told})})


def agents(*parameters: Mapping[str, str], agent: str = "recorder") -> str:
    """As text for a configuration."""
    configured = tuple(RepositoryAgentConfig(name=agent, parameters=dict(each)) for each in parameters)
    return format_pbtxt(ModelConfig(model_repository_agents=ModelRepositoryAgents(agents=configured))) + "\n"


@asynccontextmanager
async def running(
    repository: Path, registry: AgentRegistry, backend: type[FakeBackend] | None = None
) -> AsyncIterator[ServerCore]:
    settings = CoreSettings((repository,), control_mode=ControlMode.EXPLICIT)
    core = ServerCore(settings, BackendRegistry({"fake": backend or fake_backend()}), agents=registry)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        yield core
        core.stop()


async def test_a_whole_life(tmp_path: Path, registry: AgentRegistry, told: list[str]) -> None:
    """Loads and unloads in the order of the configuration, their completions in reverse."""
    add_model(tmp_path / "r", "m", config=PBTXT + agents({"name": "a"}, {"name": "b"}))
    async with running(tmp_path / "r", registry) as core:
        await core.load_model("m")
        await core.infer(request())
        await core.unload_model("m")
    assert told == [
        *("a load m", "b load m", "b load_complete m", "a load_complete m"),
        *("a unload m", "b unload m", "b unload_complete m", "a unload_complete m"),
    ]


async def test_a_server_that_ends_tells_the_agents(tmp_path: Path, registry: AgentRegistry, told: list[str]) -> None:
    add_model(tmp_path / "r", "m", config=PBTXT + agents({"name": "a"}))
    async with running(tmp_path / "r", registry) as core:
        await core.load_model("m")
    assert told == ["a load m", "a load_complete m", "a unload m", "a unload_complete m"]
    told.clear()
    settings = CoreSettings((tmp_path / "r",))
    core = ServerCore(settings, BackendRegistry({"fake": fake_backend()}), agents=registry)
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        nursery.cancel_scope.cancel()
    assert told[0] == "a load m"
    assert told[-1] == "a unload_complete m"


async def test_each_agent_sees_what_the_one_before_it_gave(
    tmp_path: Path, registry: AgentRegistry, told: list[str]
) -> None:
    """The folder that the last one gives is loaded, with its own configuration; who the agents are is as it was."""
    add_model(tmp_path / "r", "m", config=agents({"name": "a", "gives": "r/moved"}, {"name": "b"}) + PBTXT)
    add_model(tmp_path / "r", "moved", versions=(3,), config=PBTXT.replace("max_batch_size: 4", "max_batch_size: 2"))
    async with running(tmp_path / "r", registry) as core:
        await core.load_model("m")
        assert core.model_config("m")["max_batch_size"] == 2
        assert core.model_metadata("m").versions == ("3",)
    assert told[:4] == ["a load m", "b load moved", "b load_complete moved", "a load_complete m"]


@pytest.mark.parametrize(
    ("parameters", "text", "expected"),
    [
        (
            ({"name": "a"}, {"name": "b", "fails": "load"}, {"name": "c"}),
            "Internal: repository agent 'recorder' of model 'm' has failed: RuntimeError: cannot load",
            ["a load m", "b load m", "a load_fail m"],
        ),
        (
            ({"name": "a"}, {"name": "b", "bad": "1"}),
            "Invalid argument: repository agent 'recorder' of model 'm': 'bad' is no parameter of mine",
            ["a load m", "a load_fail m"],
        ),
        (
            ({"name": "a"}, {"name": "b", "gives": "nowhere"}),
            "has failed|which is no directory",
            ["a load m", "b load m", "a load_fail m"],
        ),
    ],
)
async def test_an_agent_that_refuses_the_model(
    tmp_path: Path,
    registry: AgentRegistry,
    told: list[str],
    parameters: tuple[Mapping[str, str], ...],
    text: str,
    expected: list[str],
) -> None:
    """The load fails with its words; those before it are told, it is not, and those after it never were asked."""
    add_model(tmp_path / "r", "m", config=PBTXT + agents(*parameters))
    async with running(tmp_path / "r", registry) as core:
        with pytest.raises(InvalidArgument, match=text):
            await core.load_model("m")
        (entry,) = await core.repository_index()
        assert entry.state == "UNAVAILABLE"
    assert told == expected


async def test_a_model_that_does_not_load(tmp_path: Path, registry: AgentRegistry, told: list[str]) -> None:
    """Whether its configuration or its backend is at fault: the agents are told in reverse order."""

    def refuse(backend: FakeBackend) -> None:
        raise InvalidArgument("not today")

    add_model(tmp_path / "r", "m", config=PBTXT + agents({"name": "a"}, {"name": "b"}))
    async with running(tmp_path / "r", registry, fake_backend(on_load=refuse)) as core:
        with pytest.raises(InvalidArgument, match="not today"):
            await core.load_model("m")
    failed = ["a load m", "b load m", "b load_fail m", "a load_fail m"]
    assert told == failed
    told.clear()
    broken = "model_metrics { metric_control {} }"
    add_model(tmp_path / "r", "m", config=PBTXT + agents({"name": "a"}, {"name": "b"}) + broken)
    async with running(tmp_path / "r", registry) as core:
        with pytest.raises(InvalidArgument):
            await core.load_model("m")
    assert told == failed


async def test_a_replaced_model_leaves_after_the_new_one_serves(
    tmp_path: Path, registry: AgentRegistry, told: list[str]
) -> None:
    """Errors but those of `load` harm nobody."""
    add_model(tmp_path / "r", "m", config=PBTXT + agents({"name": "old", "fails": "unload"}))
    async with running(tmp_path / "r", registry) as core:
        await core.load_model("m")
        add_model(tmp_path / "r", "m", config=PBTXT + agents({"name": "new", "fails": "load_complete"}))
        await core.load_model("m")
        await core.infer(request())
    assert told.index("new load m") < told.index("old unload m") < told.index("old unload_complete m")
    assert told.index("new unload m") < told.index("new unload_complete m")


@pytest.fixture
def gzip_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[RepositoryAgent]]:
    agent: type[RepositoryAgent] = load_example("repository_agent/gzip_agent").GzipAgent
    yield agent
    sys.modules.pop("gzip_agent", None)


async def test_the_example_unpacks_a_model_and_cleans_up(
    tmp_path: Path, gzip_agent: type[RepositoryAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    add_add_sub(tmp_path / "r" / "add_sub", versions=(1,))
    plain = tmp_path / "r" / "add_sub" / "1" / "model.onnx"
    plain.with_suffix(".onnx.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    with (tmp_path / "r" / "add_sub" / "config.pbtxt").open("a") as config:
        config.write(agents({}, agent="gzip"))
    inputs = add_sub_inputs()
    settings = CoreSettings((tmp_path / "r",))
    core = ServerCore(settings, BackendRegistry(), agents=AgentRegistry({"gzip": gzip_agent}))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        tensors = [Tensor.from_numpy(name, array) for name, array in inputs.items()]
        answer = await core.infer(InferenceRequest("add_sub", tensors))
        assert answer.outputs[0].as_numpy().tolist() == (inputs["INPUT0"] + inputs["INPUT1"]).tolist()
        assert len(list((tmp_path / "temporary").iterdir())) == 1
        core.stop()
    assert not list((tmp_path / "temporary").iterdir())
    with pytest.raises(ValueError, match="it takes no parameters, got level"):
        gzip_agent({"level": "9"})
