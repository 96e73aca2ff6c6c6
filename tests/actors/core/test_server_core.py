"""The core over real repositories on disk with a fake backend: loading, swapping, look-ups, stopping."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.lifecycle.table import KEPT_PASSING
from actors.mail.reply_slot import ReplySlot
from backends.registry import BackendRegistry
from protocol.core import LoadParameters, ModelIndex, ModelStatistics
from protocol.edge_link.linked_core import LinkedCore
from protocol.errors import InvalidArgument, NotFound, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse
from repository.pbtxt import format_pbtxt
from tests.actors.fakes import CONFIG, FakeBackend, fake_backend, request, tensor
from tests.protocol.edge_link.links import linked

over_link: ContextVar[bool] = ContextVar("over_link", default=False)


@pytest.fixture(autouse=True, params=[pytest.param(False, id="core"), pytest.param(True, id="link")])
def how(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs twice: edges of another process see the same."""
    token = over_link.set(request.param)
    yield
    over_link.reset(token)


class CoreByLink:
    """The core as an edge process sees it; what is not in the interface is that of the core itself."""

    def __init__(self, core: ServerCore, link: LinkedCore) -> None:
        self._core = core
        self._link = link

    def __getattr__(self, name: str) -> object:
        return getattr(self._link if hasattr(LinkedCore, name) and name != "run" else self._core, name)

    def model_statistics(self, *of: Any) -> list[ModelStatistics]:
        return list(self._link.each_statistics(*of))


OVERRIDE = """{"backend": "fake", "max_batch_size": 2,
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}]}"""
PBTXT = format_pbtxt(CONFIG).replace('name: "m"\n', "")


def add_model(repository: Path, name: str, *, versions: Sequence[int] = (1,), config: str = PBTXT) -> Path:
    for version in versions:
        (repository / name / str(version)).mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    return repository / name


@asynccontextmanager
async def running(
    *repositories: Path,
    backend: type[FakeBackend] | None = None,
    mode: ControlMode = ControlMode.NONE,
    load: Sequence[str] = (),
    strict_readiness: bool = True,
) -> AsyncIterator[ServerCore]:
    """A started core, stopped at the end."""
    settings = CoreSettings(repositories, control_mode=mode, load_models=tuple(load), strict_readiness=strict_readiness)
    core = ServerCore(settings, BackendRegistry({"fake": backend or fake_backend()}))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        if over_link.get():
            async with linked(core) as link:
                core.models_changed = link.models_changed
                yield cast("ServerCore", CoreByLink(core, link.core))
                core.models_changed = lambda names: None
        else:
            yield core
        core.stop()


async def test_it_loads_a_repository_and_answers_everything_about_it(tmp_path: Path) -> None:
    add_model(tmp_path, "m", versions=(1, 2))
    async with running(tmp_path) as core:
        assert core.is_live()
        assert core.is_ready()
        assert core.is_model_ready("m")
        assert await core.repository_index() == [ModelIndex("m", "2", "READY")]
        metadata = core.model_metadata("m")
        assert (metadata.versions, metadata.platform) == (("2",), "fake")
        assert (metadata.inputs[0].datatype, metadata.inputs[0].shape) == ("FP32", (-1, 2))
        assert core.model_config("m")["max_batch_size"] == 4
        response = await core.infer(request(value=3))
        assert response.outputs[0].as_numpy().tolist() == [[3, 3]]
        (statistics,) = core.model_statistics()
        assert (statistics.name, statistics.version, statistics.inference_count) == ("m", "2", 1)
        assert core.model_statistics("m", 2) == [statistics]
        (snapshot,) = core.snapshots()
        assert (snapshot.model, snapshot.pending_requests) == ("m", 0)


async def test_look_ups_that_fail_say_why(tmp_path: Path) -> None:
    add_model(tmp_path, "m")
    async with running(tmp_path) as core:
        cases: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: core.is_model_ready("x"), NotFound, "Request for unknown model: 'x' is not found"),
            (lambda: core.model_config("m", 7), NotFound, "Request for unknown model: 'm' version 7 is not found"),
            (lambda: core.model_statistics("x"), InvalidArgument, "requested model 'x' is not available"),
            (
                lambda: core.model_statistics("m", 7),
                InvalidArgument,
                "requested model version is not available for model 'm'",
            ),
        ]
        for call, error, text in cases:
            with pytest.raises(error) as caught:
                call()
            assert str(caught.value) == text
        with pytest.raises(NotFound, match="'x' is not found"):
            await core.infer(InferenceRequest("x", []))


async def test_one_bad_model_leaves_the_rest_serving(tmp_path: Path) -> None:
    add_model(tmp_path, "good", config=PBTXT)
    add_model(tmp_path, "broken", config="max_batch_size: many")
    add_model(tmp_path, "later", config='backend: "fake" runtime: "other.so"')
    add_model(tmp_path, "unknown", config='backend: "nope"')
    (tmp_path / "empty").mkdir()
    async with running(tmp_path) as core:
        index = {entry.name: entry for entry in await core.repository_index()}
        assert index["good"].state == "READY"
        assert "broken/config.pbtxt:1:17: Couldn't parse integer: many" in index["broken"].reason
        assert "runtime other than model.py" in index["later"].reason
        assert "'nope'" in index["unknown"].reason
        assert all(index[name].state == "UNAVAILABLE" for name in ("broken", "later", "unknown", "empty"))
        assert not core.is_ready()
        assert [entry.name for entry in await core.repository_index(ready=True)] == ["good"]
        with pytest.raises(NotFound, match="'broken' has no available versions"):
            core.model_config("broken")
    async with running(tmp_path, strict_readiness=False) as core:
        assert core.is_ready()


async def test_a_name_in_two_repositories_is_served_from_neither(tmp_path: Path) -> None:
    add_model(tmp_path / "a", "m")
    add_model(tmp_path / "b", "m")
    add_model(tmp_path / "b", "n")
    async with running(tmp_path / "a", tmp_path / "b") as core:
        index = {entry.name: entry for entry in await core.repository_index()}
        assert (index["m"].state, index["n"].state) == ("UNAVAILABLE", "READY")
        assert "model appears in two or more repositories" in index["m"].reason


async def test_explicit_mode_loads_what_it_is_told(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        add_model(tmp_path, name)
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["a"]) as core:
        assert await core.repository_index() == [ModelIndex("a", "1", "READY"), ModelIndex("b"), ModelIndex("c")]
        await core.load_model("b")
        assert core.is_model_ready("b")
        await core.unload_model("a")
        await core.unload_model("never heard of")
        await wait_all_tasks_blocked()
        assert (await core.repository_index())[0] == ModelIndex("a", "1", "UNAVAILABLE", "unloaded")
        assert core.is_ready(), "unloaded on purpose does not count"
        with pytest.raises(NotFound, match="'a' has no available versions"):
            await core.infer(InferenceRequest("a", []))
        for name, text in [
            ("nope", "failed to load 'nope', failed to poll from model repository"),
            ("../a", "invalid model name '../a', model name must not contain path traversal characters"),
        ]:
            with pytest.raises(InvalidArgument) as caught:
                await core.load_model(name)
            assert caught.value.message == text
        assert core.is_ready(), "a client's wrong name is not the server's fault"
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["*"]) as core:
        assert [entry.state for entry in await core.repository_index()] == ["READY"] * 3


async def test_other_modes_refuse_to_load_and_unload(tmp_path: Path) -> None:
    add_model(tmp_path, "m")
    async with running(tmp_path) as core:
        for call in (core.load_model, core.unload_model):
            with pytest.raises(Unavailable, match="explicit model load / unload is not allowed"):
                await call("m")


async def test_a_changed_model_is_swapped_in_and_the_old_one_finishes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    directory = add_model(tmp_path, "m")
    backend = fake_backend(seconds=5)
    answers: list[str] = []

    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT, load=["m"]) as core:

        async def call(id: str) -> None:
            answers.append((await core.infer(request(id=id))).id)

        async with trio.open_nursery() as calls:
            calls.start_soon(call, "old")
            await wait_all_tasks_blocked()
            await core.load_model("m")
            assert len(backend.made) == 1, "nothing has changed, so nothing is loaded"
            (directory / "2").mkdir()
            (directory / "2" / "weights").write_text("x")
            await core.load_model("m")
            assert len(backend.made) == 2
            assert core.model_metadata("m").versions == ("2",)
            calls.start_soon(call, "new")
        assert sorted(answers) == ["new", "old"]
        await wait_all_tasks_blocked()
        assert [made.is_loaded for made in backend.made] == [False, True]


async def test_a_request_that_meets_the_swap_is_answered_by_the_new_version(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It had found the old one, and came to it too late; a version that is gone for good says so."""
    directory = add_model(tmp_path, "m", versions=(1,))
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        old = core._running().find("m")
        (directory / "1" / "weights").write_text("x")
        await core.load_model("m")
        assert (await old.infer(request(id="late"))).id == "late"
        slot = ReplySlot()
        submission = old.submit(request(id="late, in a burst"), slot, later=True)  # flushed at the end of no burst
        assert isinstance(await slot.receive(), InferenceResponse)
        submission.end()
        answered: list[str] = []

        async def respond(response: InferenceResponse) -> None:
            answered.append(response.id)

        assert await old.infer_stream(request(id="also late"), respond)
        assert answered == ["also late"]
        assert [each.inference_count for each in core.model_statistics("m")] == [3]
        (directory / "2").mkdir()
        (directory / "1" / "weights").unlink()
        (directory / "1").rmdir()
        await core.load_model("m")
        with pytest.raises(NotFound, match="'m' version 1 is not found"):
            await old.infer(InferenceRequest("m", [tensor()], model_version=1))
        await core.unload_model("m")
        with pytest.raises(NotFound, match="'m' has no available versions"):
            await old.infer(request())


async def test_a_failed_load_leaves_the_old_one_serving(tmp_path: Path) -> None:
    directory = add_model(tmp_path, "m")

    def fail_later(backend: FakeBackend) -> None:
        if len(type(backend).made) > 1:
            raise InvalidArgument("bad weights")

    async with running(
        tmp_path, backend=fake_backend(on_load=fail_later), mode=ControlMode.EXPLICIT, load=["*"]
    ) as core:
        (directory / "1" / "weights").write_text("x")
        with pytest.raises(InvalidArgument) as caught:
            await core.load_model("m")
        assert caught.value.message == (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: bad weights;\n"
        )
        (directory / "config.pbtxt").write_text("max_batch_size: -1")
        with pytest.raises(InvalidArgument, match="failed to load 'm'"):
            await core.load_model("m")
        assert core.is_ready()
        assert (await core.infer(request(id="still"))).id == "still"


async def test_a_config_override_counts_until_the_next_load(tmp_path: Path) -> None:
    add_model(tmp_path, "m")
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        await core.load_model("m", LoadParameters(config=OVERRIDE))
        assert core.model_config("m")["max_batch_size"] == 2
        await core.load_model("m")
        assert core.model_config("m")["max_batch_size"] == 4
        with pytest.raises(InvalidArgument, match="Invalid config override"):
            await core.load_model("m", LoadParameters(config='{"no_such_field": 1}'))
        with pytest.raises(InvalidArgument, match="Load parameter 'config' must be specified"):
            await core.load_model("m", LoadParameters(files={"1/model.py": b""}))


async def test_a_model_can_be_brought_by_the_load_call(tmp_path: Path) -> None:
    """Its files are there while it serves, and the next plain load goes back to the repository."""
    add_model(tmp_path, "m")
    seen: dict[Path, bytes] = {}

    def look(backend: FakeBackend) -> None:
        files = (path for path in backend.spec.source.model_directory.rglob("*") if path.is_file())
        seen.update({path: path.read_bytes() for path in files})

    def left() -> list[Path]:
        return [path for path in seen if path.exists() and tmp_path not in path.parents]

    parameters = LoadParameters(config=OVERRIDE, files={"5/weights": b"x", "5/deep/more": b"y"})
    async with running(tmp_path, backend=fake_backend(on_load=look), mode=ControlMode.EXPLICIT) as core:
        await core.load_model("m", parameters)
        assert core.model_metadata("m").versions == ("5",)
        assert {path.name: contents for path, contents in seen.items()} == {"more": b"y", "weights": b"x"}
        assert len(left()) == 2
        await core.load_model("brought", parameters)
        assert core.is_model_ready("brought"), "no repository needs to have it"
        await core.load_model("m")
        assert core.model_metadata("m").versions == ("1",)
        for path in ("../x", "/../x", "1/../../x", "."):
            with pytest.raises(InvalidArgument, match="must stay within model directory"):
                await core.load_model("m", LoadParameters(config=OVERRIDE, files={path: b""}))
        with pytest.raises(InvalidArgument, match="failed to write the override files"):
            await core.load_model("m", LoadParameters(config=OVERRIDE, files={"1": b"", "1/x": b""}))
    assert left() == []


async def test_models_that_clients_made_up_are_forgotten_when_they_are_gone(tmp_path: Path) -> None:
    """Those that serve, those of the repositories, and the last of the others stay."""
    add_model(tmp_path, "m")
    broken = LoadParameters(config='{"backend": "none"}', files={"1/weights": b""})
    working = LoadParameters(config=OVERRIDE, files={"1/weights": b""})
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        await core.load_model("stays", working)
        for number in range(KEPT_PASSING):
            with pytest.raises(InvalidArgument):
                await core.load_model(f"broken{number}", broken)
            await core.load_model(f"brief{number}", working)
            await core.unload_model(f"brief{number}")
        await core.unload_model("m")
        states = {"UNLOADING"}
        while "UNLOADING" in states:  # their files are removed in threads
            names = {each.name: each for each in await core.repository_index()}
            states = {each.state for each in names.values()}
        assert names["stays"].state == "READY"
        assert (names["m"].reason, names[f"brief{KEPT_PASSING - 1}"].reason) == ("unloaded", "unloaded")
        assert "'none'" in names[f"broken{KEPT_PASSING - 1}"].reason
        assert len(names) == KEPT_PASSING + len(["m", "stays"])


async def test_stopping_refuses_new_work_and_finishes_the_accepted(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m")
    answers: list[str] = []
    core = ServerCore(CoreSettings((tmp_path,)), BackendRegistry({"fake": fake_backend(seconds=5)}))

    async def call() -> None:
        answers.append((await core.infer(request(id="accepted"))).id)

    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        core.stop()
        for ask in (core.is_live, core.is_ready):
            with pytest.raises(Unavailable, match="Server exiting"):
                ask()
        with pytest.raises(Unavailable):
            await core.infer(request())
    assert answers == ["accepted"]


async def test_a_load_outlives_its_impatient_client(tmp_path: Path) -> None:
    add_model(tmp_path, "m")
    is_loading, go_on = trio.Event(), trio.Event()

    class Slow(fake_backend()):  # type: ignore[misc]  # a class made for this test
        async def load(self) -> None:
            is_loading.set()
            await go_on.wait()

    async with running(tmp_path, backend=Slow, mode=ControlMode.EXPLICIT) as core:
        async with trio.open_nursery() as client:
            client.start_soon(core.load_model, "m")
            await is_loading.wait()
            client.cancel_scope.cancel()
        assert await core.repository_index() == [ModelIndex("m", "1", "LOADING")]
        with pytest.raises(NotFound, match="'m' has no available versions"):
            core.is_model_ready("m")
        go_on.set()
        await wait_all_tasks_blocked()
        assert core.is_model_ready("m")


async def test_two_cores_in_one_process_know_nothing_of_each_other(tmp_path: Path) -> None:
    add_model(tmp_path / "a", "m")
    add_model(tmp_path / "b", "n")
    async with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
        assert [entry.name for entry in await one.repository_index()] == ["m"]
        assert [entry.name for entry in await other.repository_index()] == ["n"]
        await one.infer(request())
        assert other.model_statistics()[0].inference_count == 0


async def test_memory_is_given_back_when_a_model_goes_and_not_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = trio.Event()
    token = trio.lowlevel.current_trio_token()
    count = itertools.count(1)

    def note(has_frozen: bool) -> None:
        assert next(count) == 1
        token.run_sync_soon(given_back.set)

    monkeypatch.setattr("actors.lifecycle.freed_memory.return_free_memory", note)
    for name in "ab":
        add_model(tmp_path, name)
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["*"]) as core:
        await core.unload_model("a")
        await given_back.wait()
    assert next(count) == 2
