"""Ensembles in a repository on disk: loaded after what they need, unloaded before it, shown as other models are."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Awaitable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode, ServerCore
from actors.ensemble.composition import Composed, Composing, compose
from actors.lifecycle import loader
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from protocol.messages import InferenceRequest
from repository.model_config import ModelConfig
from tests.actors.core.test_server_core import PBTXT, add_model, running
from tests.actors.ensemble.ensembles import step
from tests.actors.fakes import fake_backend, tensor

TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def chain(*models: str, version: int = -1) -> str:
    """IN and OUT through these models, one after the other."""
    steps = [
        step(
            model,
            f"IN={'IN' if place == 0 else f'T{place}'}",
            f"OUT={'OUT' if place == len(models) - 1 else f'T{place + 1}'}",
            version=version,
        )
        for place, model in enumerate(models)
    ]
    return (
        f'platform: "ensemble" max_batch_size: 4 {TENSORS} ensemble_scheduling {{ step [ {", ".join(steps)} ] }} '
        'metric_tags { key: "team" value: "x" }'
    )


def add_ensemble(repository: Path, name: str, *models: str, versions: Sequence[int] = (1,), version: int = -1) -> Path:
    return add_model(repository, name, versions=versions, config=chain(*models, version=version))


def ask(name: str, id: str = "") -> InferenceRequest:
    return InferenceRequest(name, [tensor(2, value=3.0)], id=id)


async def states(core: ServerCore) -> dict[str, str]:
    return {entry.name: entry.state for entry in await core.repository_index()}


async def reason(core: ServerCore, name: str) -> str:
    return next(entry.reason for entry in await core.repository_index() if entry.name == name)


@pytest.mark.slow
async def test_it_appears_everywhere_as_other_models_do(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "z")
    add_ensemble(tmp_path, "e", "a", "z", versions=(3,))
    async with running(tmp_path) as core:
        assert await states(core) == {"a": "READY", "e": "READY", "z": "READY"}
        assert core.is_ready()
        assert core.is_model_ready("e")
        metadata = core.model_metadata("e")
        assert (metadata.platform, metadata.versions) == ("ensemble", ("3",))
        assert (metadata.inputs[0].name, metadata.inputs[0].shape) == ("IN", (-1, 2))
        shown = core.model_config("e")
        assert (shown["platform"], shown["backend"], shown["instance_group"]) == ("ensemble", "", [])
        assert [each["model_name"] for each in shown["ensemble_scheduling"]["step"]] == ["a", "z"]
        response = await core.infer(ask("e", "r"))
        assert response.outputs[0].as_numpy().tolist() == [[3, 3], [3, 3]]
        assert (response.model_name, response.model_version, response.id) == ("e", 3, "r")
        counts = {
            each.name: (each.version, each.inference_count, each.execution_count) for each in core.model_statistics()
        }
        assert counts == {"a": ("1", 2, 1), "e": ("3", 2, 1), "z": ("1", 2, 1)}
        (snapshot,) = [each for each in core.snapshots() if each.model == "e"]
        assert (snapshot.version, snapshot.metric_tags, snapshot.pending_requests) == (1, {"team": "x"}, 0)
        with pytest.raises(InvalidArgument, match="unexpected inference input 'X' for model 'e'"):
            await core.infer(
                InferenceRequest(
                    "e", [ask("e").inputs[0].__class__("X", ask("e").inputs[0].datatype, (1, 2), bytes(8))]
                )
            )


async def test_what_takes_long_with_many_steps_is_done_in_a_thread_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path, "a")
    directory = add_ensemble(tmp_path, "e", "a", versions=(2, 5))
    (directory / "config.pbtxt").write_text(chain("a") + " version_policy { all {} }")
    done: list[tuple[str, bool]] = []

    def noted(name: str) -> None:
        function = getattr(loader, name)

        def call(config: ModelConfig, *arguments: Any, **options: Any) -> Any:
            if config.name == "e":
                done.append((name, threading.current_thread() is threading.main_thread()))
            return function(config, *arguments, **options)

        monkeypatch.setattr(loader, name, call)

    noted("validate")
    noted("compose")
    async with running(tmp_path) as core:
        assert await states(core) == {"a": "READY", "e": "READY"}
    assert done == [("validate", False), ("compose", False)]


async def test_a_model_that_is_replaced_while_its_ensemble_is_composed_counts_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path, "a")
    add_ensemble(tmp_path, "e", "a")
    seen: list[int] = []
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["a"]) as core:
        smaller = LoadParameters(json.dumps({**core.model_config("a"), "max_batch_size": 5}))

        def composed(config: ModelConfig, composing: Composing) -> Composed:
            ((model, _),) = composing.models.values()
            seen.append(model.max_batch_size)
            if len(seen) == 1:
                trio.from_thread.run(core.load_model, "a", smaller)
            return compose(config, composing)

        monkeypatch.setattr(loader, "compose", composed)
        before = core.model_config("a")["max_batch_size"]
        await core.load_model("e")
        assert seen == [before, 5]


async def test_two_versions_of_an_ensemble_are_labelled_by_their_own(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    directory = add_ensemble(tmp_path, "e", "a", versions=(2, 5))
    (directory / "config.pbtxt").write_text(chain("a") + " version_policy { all {} }")
    async with running(tmp_path) as core:
        assert [each.version for each in core.snapshots() if each.model == "e"] == [2, 5]


async def test_a_version_directory_is_needed(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.pbtxt").write_text(chain("a"))
    async with running(tmp_path) as core:
        assert "at least one version must be available under the version policy of model 'e'" in await reason(core, "e")


async def test_nested_ensembles_load_from_the_inside(tmp_path: Path) -> None:
    add_model(tmp_path, "m")
    add_ensemble(tmp_path, "a_outer", "b_middle", "m")
    add_ensemble(tmp_path, "b_middle", "c_inner", "c_inner")
    add_ensemble(tmp_path, "c_inner", "m")
    async with running(tmp_path) as core:
        assert set((await states(core)).values()) == {"READY"}
        assert (await core.infer(ask("a_outer"))).outputs[0].as_numpy().tolist() == [[3, 3], [3, 3]]
        (statistics,) = core.model_statistics("m")
        assert statistics.execution_count == 3


@pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.EXPLICIT])
async def test_what_an_ensemble_lacks_is_named(tmp_path: Path, mode: ControlMode) -> None:
    add_model(tmp_path / "one", "twice")
    add_model(tmp_path / "two", "twice")
    add_model(tmp_path / "one", "broken", config="max_batch_size: many")
    add_model(tmp_path / "one", "good")
    add_ensemble(tmp_path / "one", "e1", "good", "none", "twice")
    add_ensemble(tmp_path / "one", "e2", "good", "broken")
    add_ensemble(tmp_path / "one", "e3", "good", version=7)
    add_ensemble(tmp_path / "one", "e4", "e2")
    async with running(tmp_path / "one", tmp_path / "two", mode=mode, load=["*"]) as core:
        found = await states(core)
        assert {name for name, state in found.items() if state == "READY"} == {"good"}
        assert await reason(core, "e1") == (
            "Invalid argument: ensemble e1 contains models that are not available or ambiguous: none, twice"
        )
        broken = await reason(core, "broken")
        assert await reason(core, "e2") == (
            "Invalid argument: ensemble 'e2' depends on 'broken' which has no loaded version. Model 'broken' loading "
            f"failed with error: {broken}"
        )
        assert await reason(core, "e3") == (
            "Invalid argument: ensemble 'e3' depends on 'good' whose required version 7 is not loaded."
        )
        assert await reason(core, "e4") == (
            "Invalid argument: ensemble 'e4' depends on 'e2' which has no loaded version. Model 'e2' loading failed "
            f"with error: {await reason(core, 'e2')}"
        )
        assert not core.is_ready()


async def test_ensembles_that_need_themselves_are_refused_by_the_way_round(tmp_path: Path) -> None:
    add_model(tmp_path, "m")
    add_ensemble(tmp_path, "a", "m", "b")
    add_ensemble(tmp_path, "b", "c")
    add_ensemble(tmp_path, "c", "a")
    add_ensemble(tmp_path, "outside", "a")
    add_ensemble(tmp_path, "self", "self")
    async with running(tmp_path) as core:
        assert (await states(core))["m"] == "READY"
        assert await reason(core, "a") == ("Invalid argument: circular dependency between ensembles: a -> b -> c -> a")
        assert (await reason(core, "c")).endswith("c -> a -> b -> c")
        assert (await reason(core, "self")).endswith("self -> self")
        assert (await reason(core, "outside")).endswith("circular dependency between ensembles: a -> b -> c -> a")


async def test_an_ensemble_that_does_not_fit_its_models_is_refused(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=PBTXT.replace("TYPE_FP32", "TYPE_INT64"))
    add_ensemble(tmp_path, "e", "m")
    async with running(tmp_path) as core:
        assert await reason(core, "e") == (
            "Invalid argument: in ensemble e, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from "
            "model e while TYPE_INT64 is inferred from model m"
        )


async def test_loading_an_ensemble_loads_what_it_needs(tmp_path: Path) -> None:
    for name in ("a", "b", "other"):
        add_model(tmp_path, name)
    add_ensemble(tmp_path, "inner", "b")
    add_ensemble(tmp_path, "e", "a", "inner")
    backend = fake_backend()
    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT, load=["a"]) as core:
        await core.load_model("e")
        assert await states(core) == {"a": "READY", "b": "READY", "e": "READY", "inner": "READY", "other": ""}
        assert len(backend.made) == 2, "a was there already"
        assert (await core.infer(ask("e"))).outputs

        # What was loaded for an ensemble goes with it if that is wished, what was asked for stays.
        await core.unload_model("inner")
        await wait_all_tasks_blocked()
        assert not core.is_model_ready("e")
        with pytest.raises(NotFound) as caught:
            await core.infer(ask("e"))
        assert caught.value.message == (
            "in ensemble 'e', Request for unknown model: 'inner' has no available versions (step 1, model 'inner')"
        )
        await core.load_model("inner")
        assert core.is_model_ready("e")
        await core.unload_model("e")
        await wait_all_tasks_blocked()
        assert await states(core) == {"a": "READY", "b": "READY", "e": "UNAVAILABLE", "inner": "READY", "other": ""}


async def test_who_keeps_what_is_known_of_models_is_told_which_have_changed(tmp_path: Path) -> None:
    """Of one that an ensemble needs all may have, since the ensemble's own facts are partly of it."""
    for name in ("a", "z"):
        add_model(tmp_path, name)
    add_ensemble(tmp_path, "e", "a")
    async with running(tmp_path, mode=ControlMode.EXPLICIT) as core:
        told: list[Collection[str] | None] = []
        core.models_changed = told.append

        async def told_by(change: Awaitable[None]) -> list[Collection[str] | None]:
            told.clear()
            await change
            await wait_all_tasks_blocked(0.01)
            return [each for place, each in enumerate(told) if each not in told[:place]]

        assert await told_by(core.load_model("z")) == [{"z"}]
        told.clear()
        with pytest.raises(InvalidArgument):
            await core.load_model("z", LoadParameters(config="{"))
        assert told == [{"z"}]
        assert await told_by(core.load_model("a")) == [{"a"}]
        assert await told_by(core.load_model("e")) == [{"e"}]
        assert await told_by(core.unload_model("z")) == [{"z"}]
        assert await told_by(core.unload_model("a")) == [None]
        assert await told_by(core.load_model("a")) == [None]
        assert await told_by(core.unload_model("e")) == [{"e"}]
        core.models_changed = lambda names: None


async def test_unloading_with_dependents_takes_what_was_loaded_for_the_ensemble_alone(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        add_model(tmp_path, name)
    add_ensemble(tmp_path, "inner", "b")
    add_ensemble(tmp_path, "e", "a", "inner", "c")
    add_ensemble(tmp_path, "f", "c")
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["a", "f"]) as core:
        await core.load_model("e")
        await core.unload_model("e", unload_dependents=True)
        await wait_all_tasks_blocked()
        found = await states(core)
        assert found == {
            "a": "READY",  # asked for
            "b": "UNAVAILABLE",
            "c": "READY",  # another ensemble needs it
            "e": "UNAVAILABLE",
            "f": "READY",
            "inner": "UNAVAILABLE",
        }
        assert await reason(core, "b") == "unloaded"
        await core.unload_model("f", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert (await states(core))["c"] == "UNAVAILABLE"


async def test_at_an_unload_with_dependents_running_requests_finish_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "b")
    add_ensemble(tmp_path, "e", "a", "b")
    answers: list[Any] = []
    async with running(tmp_path, backend=fake_backend(seconds=5), mode=ControlMode.EXPLICIT, load=["e"]) as core:

        async def call() -> None:
            answers.append((await core.infer(ask("e"))).outputs[0].shape)

        async with trio.open_nursery() as calls:
            calls.start_soon(call)
            await wait_all_tasks_blocked()
            await core.unload_model("e", unload_dependents=True)
            await wait_all_tasks_blocked()
            assert core.is_model_ready("b")
        await wait_all_tasks_blocked()
        assert answers == [(2, 2)]
        assert set((await states(core)).values()) == {"UNAVAILABLE"}


async def test_at_the_end_running_ensembles_finish_before_their_models_stop(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "b")
    add_ensemble(tmp_path, "inner", "a", "b")
    add_ensemble(tmp_path, "e", "inner", "a")
    answers: list[Any] = []
    backend = fake_backend(seconds=5)
    async with trio.open_nursery() as calls, running(tmp_path, backend=backend) as core:

        async def call() -> None:
            answers.append((await core.infer(ask("e"))).outputs[0].shape)

        calls.start_soon(call)
        await wait_all_tasks_blocked()
        core.stop()
        await wait_all_tasks_blocked()
        with pytest.raises(Unavailable):
            await core.infer(ask("e"))
    assert answers == [(2, 2)]
    assert [made.is_loaded for made in backend.made] == [False, False]


async def test_a_composing_model_is_replaced_under_a_running_ensemble(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    directory = add_model(tmp_path, "a")
    add_model(tmp_path, "b")
    add_ensemble(tmp_path, "e", "a", "b")
    answers: list[int] = []
    async with running(tmp_path, backend=fake_backend(seconds=5), mode=ControlMode.EXPLICIT, load=["e"]) as core:

        async def call() -> None:
            answers.append((await core.infer(ask("e"))).model_version)

        async with trio.open_nursery() as calls:
            calls.start_soon(call)
            await wait_all_tasks_blocked()
            (directory / "1" / "weights").write_text("x")
            await core.load_model("a")
            calls.start_soon(call)
        assert answers == [1, 1]

        # One that does not fit any more is told; the ensemble heals with the next that does.
        (directory / "config.pbtxt").write_text(PBTXT.replace("TYPE_FP32", "TYPE_INT64"))
        await core.load_model("a")
        assert not core.is_model_ready("e")
        with pytest.raises(Unavailable, match=r"does not fit its composing models.*inconsistent data type"):
            await core.infer(ask("e"))
        (directory / "config.pbtxt").write_text(PBTXT)
        await core.load_model("a")
        assert core.is_model_ready("e")


async def test_an_ensemble_that_fails_to_load_anew_goes_on_as_it_was(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    directory = add_ensemble(tmp_path, "e", "a")
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["e"]) as core:
        (directory / "config.pbtxt").write_text(chain("gone"))
        with pytest.raises(InvalidArgument) as caught:
            await core.load_model("e")
        assert caught.value.message == (
            "failed to load 'e': Invalid argument: ensemble e contains models that are not available or ambiguous: gone"
        )
        assert (await core.infer(ask("e"))).outputs
        (directory / "config.pbtxt").write_text(chain("a", "a"))
        await core.load_model("e")
        await core.infer(ask("e"))
        (statistics,) = core.model_statistics("a")
        assert statistics.execution_count == 3


async def test_overrides_may_be_ensembles_too(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "e")
    tensors = {"data_type": "TYPE_FP32", "dims": [2]}
    override = json.dumps(
        {
            "platform": "ensemble",
            "max_batch_size": 4,
            "input": [{"name": "IN", **tensors}],
            "output": [{"name": "OUT", **tensors}],
            "ensemble_scheduling": {
                "step": [
                    {"model_name": "a", "model_version": -1, "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}
                ]
            },
        }
    )
    async with running(tmp_path, mode=ControlMode.EXPLICIT) as core:
        await core.load_model("e", LoadParameters(config=override))
        assert core.model_metadata("e").platform == "ensemble"
        assert (await core.infer(ask("e"))).outputs
        await core.load_model("from_files", LoadParameters(config=override, files={"1/note": base64.b64decode("eA==")}))
        assert (await core.infer(ask("from_files"))).outputs
        # A cycle through a configuration that only the running ensemble has.
        with pytest.raises(InvalidArgument, match=r"circular dependency between ensembles: a -> e -> a"):
            await core.load_model("a", LoadParameters(config=override.replace('"a"', '"e"')))
        assert core.is_model_ready("a")


async def test_many_ensembles_load_beside_each_other(tmp_path: Path) -> None:
    """More of them than may load at a time, each of which waits for another: none holds a place while it waits."""
    add_model(tmp_path, "m")
    add_ensemble(tmp_path, "e0", "m")
    for number in range(1, 12):
        add_ensemble(tmp_path, f"e{number}", f"e{number - 1}")
    async with running(tmp_path, mode=ControlMode.EXPLICIT) as core:
        failures: list[ServerError] = []

        async def load(name: str) -> None:
            try:
                await core.load_model(name)
            except ServerError as error:
                failures.append(error)

        with trio.fail_after(30):
            async with trio.open_nursery() as loads:
                for number in range(12):
                    loads.start_soon(load, f"e{number}")
        assert not failures
        assert (await core.infer(ask("e11"))).outputs[0].as_numpy().dtype == np.float32
