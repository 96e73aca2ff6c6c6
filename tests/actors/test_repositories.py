"""Several repositories in one server: registered and dropped while it runs, and namespaces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.core import LoadParameters, ModelIndex, ModelRepository
from protocol.errors import InvalidArgument, NotFound, Unsupported
from protocol.messages import InferenceRequest
from tests.actors.core.test_server_core import OVERRIDE, PBTXT, add_model, running
from tests.actors.fakes import fake_backend, tensor
from tests.actors.lifecycle.test_composing import add_ensemble, ask, chain


@asynccontextmanager
async def namespaced(
    *repositories: Path, mode: ControlMode = ControlMode.NONE, load: Sequence[str] = ()
) -> AsyncIterator[ServerCore]:
    settings = CoreSettings(repositories, control_mode=mode, load_models=tuple(load), is_namespaced=True)
    core = ServerCore(settings, BackendRegistry({"fake": fake_backend()}))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        yield core
        core.stop()


def sized(size: int) -> str:
    """A configuration that can be told from others."""
    return PBTXT.replace("max_batch_size: 4", f"max_batch_size: {size}")


async def served_size(core: ServerCore, name: str) -> int:
    assert (await core.infer(InferenceRequest(name, [tensor()], id="r"))).id == "r"
    return int(core.model_config(name)["max_batch_size"])


async def test_a_repository_is_registered_used_and_dropped(tmp_path: Path) -> None:
    add_model(tmp_path / "a", "m")
    add_model(tmp_path / "b", "n", config=sized(7))
    async with running(tmp_path / "a", mode=ControlMode.EXPLICIT) as core:
        with pytest.raises(InvalidArgument, match="failed to poll from model repository"):
            await core.load_model("n")
        await core.register_repository(ModelRepository(str(tmp_path / "b"), {"n": "renamed"}))
        assert core.repositories() == [
            ModelRepository(str(tmp_path / "a")),
            ModelRepository(str(tmp_path / "b"), {"n": "renamed"}),
        ]
        assert [entry.name for entry in await core.repository_index()] == ["m", "renamed"]
        await core.load_model("renamed")
        assert await served_size(core, "renamed") == 7
        await core.unregister_repository(str(tmp_path / "b"))
        assert await served_size(core, "renamed") == 7, "what serves goes on"
        with pytest.raises(InvalidArgument, match="failed to load 'renamed', failed to poll from model repository"):
            await core.load_model("renamed")
        entry = next(each for each in await core.repository_index() if each.name == "renamed")
        assert entry.state == "READY"
        assert "failed to poll from model repository" in entry.reason
        await core.unload_model("renamed")
        await wait_all_tasks_blocked()
        with pytest.raises(NotFound):
            await core.infer(InferenceRequest("renamed", [tensor()]))


@pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.POLL])
async def test_repositories_change_in_explicit_mode_only(tmp_path: Path, mode: ControlMode) -> None:
    async with running(tmp_path, mode=mode) as core:
        for call, text in [
            (core.register_repository(ModelRepository(str(tmp_path))), "repository registration"),
            (core.unregister_repository(str(tmp_path)), "repository unregistration"),
        ]:
            with pytest.raises(Unsupported) as raised:
                await call
            assert raised.value.message == f"{text} is not allowed if model control mode is not EXPLICIT"


async def test_a_name_in_two_namespaces_needs_its_namespace(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    add_model(a, "m", config=sized(2))
    add_model(b, "m", config=sized(3))
    add_model(b, "only", config=sized(4))
    async with namespaced(a, b) as core:
        assert await core.repository_index() == [
            ModelIndex("m", "1", "READY", "", str(a)),
            ModelIndex("m", "1", "READY", "", str(b)),
            ModelIndex("only", "1", "READY", "", str(b)),
        ]
        assert await served_size(core, "only") == 4
        assert await served_size(core, f"{a}::m") == 2
        assert await served_size(core, f"{b}::m") == 3
        text = (
            "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
        )
        for call in (core.model_config, core.model_metadata, core.is_model_ready, core.model_statistics):
            with pytest.raises(InvalidArgument) as raised:
                call("m")
            assert raised.value.message == text
        with pytest.raises(InvalidArgument, match="There are 2 identifiers"):
            await core.infer(InferenceRequest("m", [tensor()]))
        assert core.model_metadata("only").versions == ("1",)
        assert [(each.name, each.inference_count) for each in core.model_statistics()] == [
            ("m", 1),
            ("m", 1),
            ("only", 1),
        ]
        assert [(each.namespace, each.model) for each in core.snapshots()] == [
            (str(a), "m"),
            (str(b), "m"),
            (str(b), "only"),
        ]


async def test_loading_and_unloading_with_namespaces(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    add_model(a, "m", config=sized(2))
    add_model(b, "m", config=sized(3))
    add_model(b, "only", config=sized(4))
    async with namespaced(a, b, mode=ControlMode.EXPLICIT, load=["only"]) as core:
        assert core.is_ready()
        for name, text in [("m", "There are 2 identifiers of model 'm'"), (f"{a}::x", "failed to poll")]:
            with pytest.raises(InvalidArgument, match=text):
                await core.load_model(name)
        told: list[Collection[str] | None] = []
        core.models_changed = told.append
        await core.load_model(f"{a}::m")
        assert told[0] == {f"{a}::m", "m"}, "it may be asked for by both"
        assert await served_size(core, "m") == 2, "the only one that serves"
        await core.load_model("only", LoadParameters(config=OVERRIDE))
        assert await served_size(core, "only") == 2
        await core.load_model(f"{b}::m")
        with pytest.raises(InvalidArgument, match="There are 2 identifiers"):
            await core.unload_model("m")
        await core.unload_model(f"{a}::m")
        await wait_all_tasks_blocked()
        assert await served_size(core, "m") == 3
        await core.load_model("brought", LoadParameters(config=OVERRIDE, files={"1/x": b""}))
        assert await served_size(core, "brought") == 2
        assert len(await core.repository_index()) == 4
    async with namespaced(a, b, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        failed = next(each for each in await core.repository_index() if each.state == "UNAVAILABLE")
        assert "There are 2 identifiers of model 'm'" in failed.reason


async def test_an_ensemble_takes_the_models_of_its_own_namespace(tmp_path: Path) -> None:
    """Then those that are alone; others only if the step names their namespace."""
    a, b, c = (tmp_path / name for name in "abc")
    for place, size in ((a, 2), (b, 3)):
        add_model(place, "m", config=sized(size))
    add_model(b, "only", config=sized(4))
    add_ensemble(b, "own", "m", "only")
    (b / "own" / "config.pbtxt").write_text(chain("m", "only").replace("max_batch_size: 4", "max_batch_size: 1"))
    add_model(c, "split", config=_split("only"))
    add_ensemble(c, "ambiguous", "m")
    named = chain("m").replace('model_name: "m"', f'model_name: "m" model_namespace: "{a}"')
    add_model(c, "named", config=named.replace("max_batch_size: 4", "max_batch_size: 2"))
    async with namespaced(a, b, c) as core:
        states = {entry.name: entry for entry in await core.repository_index()}
        assert {name: states[name].state for name in ("own", "split", "named", "ambiguous")} == {
            "own": "READY",
            "split": "READY",
            "named": "READY",
            "ambiguous": "UNAVAILABLE",
        }
        reason = states["ambiguous"].reason
        assert f"ensemble {c}::ambiguous contains models that are not available or ambiguous: m" in reason
        before = counts(core)
        for name in ("own", "split", "named"):
            request = InferenceRequest(name, [tensor()])
            await core.infer(request)
        assert {key: count - before[key] for key, count in counts(core).items()} == {
            (str(a), "m"): 1,
            (str(b), "m"): 1,
            (str(b), "only"): 2,
            (str(b), "own"): 1,
            (str(c), "named"): 1,
            (str(c), "split"): 0,
        }


def counts(core: ServerCore) -> dict[tuple[str, str], int]:
    return {(each.namespace, each.model): each.statistics.inference_count for each in core.snapshots()}


def _split(target: str) -> str:
    value = '{\\"targets\\": [{\\"model\\": \\"' + target + '\\"}]}'
    return f'backend: "traffic_split" parameters {{ key: "split" value {{ string_value: "{value}" }} }}'


async def test_an_ensemble_in_explicit_mode_loads_its_own(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for place in (a, b):
        add_model(place, "m")
    add_ensemble(b, "e", "m")
    async with namespaced(a, b, mode=ControlMode.EXPLICIT) as core:
        await core.load_model("e")
        assert {(each.namespace, each.name): each.state for each in await core.repository_index()} == {
            (str(a), "m"): "",
            (str(b), "m"): "READY",
            (str(b), "e"): "READY",
        }
        await core.infer(ask("e"))
        await core.unload_model("e", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert await core.repository_index(ready=True) == []
