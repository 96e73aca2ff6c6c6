"""Traffic split over a real core: who answers, who gets copies, what is refused, and changes while it serves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode, ServerCore
from protocol.core import LoadParameters
from protocol.errors import Internal, InvalidArgument, NotFound
from protocol.messages import InferenceRequest
from repository.json_form import to_json_form
from repository.model_config import ModelConfig, ModelParameter
from repository.pbtxt import format_pbtxt
from tests.actors.core.test_server_core import add_model, running
from tests.actors.fakes import FakeBackend, fake_backend, request

TWO = {"targets": [{"model": "m", "version": 1, "weight": 3}, {"model": "m", "version": 2, "weight": 1}]}


def split_config(split: dict[str, Any]) -> ModelConfig:
    return ModelConfig(backend="traffic_split", parameters={"split": ModelParameter(json.dumps(split))})


def add_split(repository: Path, split: dict[str, Any], name: str = "s") -> None:
    (repository / name).mkdir()
    (repository / name / "config.pbtxt").write_text(format_pbtxt(split_config(split)))


def add_versions(repository: Path, *versions: int, name: str = "m") -> None:
    add_model(repository, name, versions=versions)
    config = repository / name / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all {} }")


def to_split(id: str = "", **more: Any) -> InferenceRequest:
    made = request(id=id)
    made.model_name = "s"
    for field, value in more.items():
        setattr(made, field, value)
    return made


async def served_by(core: ServerCore, count: int, **more: Any) -> Counter[str]:
    answers = [await core.infer(to_split(**more)) for _ in range(count)]
    assert {answer.model_name for answer in answers} == {"s"}
    return Counter(str(answer.parameters["served_by"]) for answer in answers)


def executed(core: ServerCore) -> dict[str, int]:
    return {f"{each.name}:{each.version}": each.execution_count for each in core.model_statistics() if each.name != "s"}


# The response of the fake backend always says version 1; who ran is in the statistics.
async def test_requests_go_to_the_versions_by_their_weights(tmp_path: Path) -> None:
    add_versions(tmp_path, 1, 2)
    add_split(tmp_path, TWO)
    async with running(tmp_path) as core:
        assert core.is_ready()
        await served_by(core, 8)
        assert executed(core) == {"m:1": 6, "m:2": 2}
        metadata = core.model_metadata("s")
        assert ([tensor.name for tensor in metadata.inputs], metadata.platform) == (["IN"], "traffic_split")
        routed = next(snapshot.routed for snapshot in core.snapshots() if snapshot.model == "s")
        assert routed == [("m", "1", "primary", 6), ("m", "2", "primary", 2)]


async def test_a_sequence_and_a_sticky_parameter_stay_with_one_target(tmp_path: Path) -> None:
    add_versions(tmp_path, 1, 2)
    add_split(tmp_path, {"targets": [{"model": "m", "version": 1}, {"model": "m", "version": 2}], "sticky": "user"})
    async with running(tmp_path) as core:
        for more in ({"sequence_id": 5}, {"sequence_id": "five"}, {"parameters": {"user": "ann"}}):
            before = executed(core)
            await served_by(core, 6, **more)
            assert sorted(executed(core)[name] - before[name] for name in before) == [0, 6]
        before = executed(core)
        await served_by(core, 6, parameters={"other": "ann"})
        assert [executed(core)[name] - before[name] for name in before] == [3, 3]


async def test_a_shadow_gets_copies_and_cannot_harm(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It may fail or be slow; no more than so many copies are under way, and the rest are dropped and counted."""

    def fail_in_shadow(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if backend.spec.source.version == 2:
            raise Internal("the shadow is broken")

    add_versions(tmp_path, 1, 2)
    add_split(
        tmp_path,
        {
            "targets": [{"model": "m", "version": 1}],
            "shadows": [{"model": "m", "version": 2}],
            "max_shadow_requests": 2,
        },
    )
    backend = fake_backend(seconds=1, on_execute=fail_in_shadow)
    async with running(tmp_path, backend=backend) as core:
        async with trio.open_nursery() as calls:
            for number in range(5):
                calls.start_soon(core.infer, to_split(id=str(number)))
        await trio.sleep(10)
        failures = {each.version: each.inference_stats.fail.count for each in core.model_statistics("m")}
        assert failures == {"1": 0, "2": 2}
        routed = next(snapshot.routed for snapshot in core.snapshots() if snapshot.model == "s")
        assert routed == [("m", "1", "primary", 5), ("m", "2", "shadow", 2), ("m", "2", "shadow_dropped", 3)]
        await core.infer(to_split(sequence_id=7))
        await trio.sleep(10)
        assert core.model_statistics("m", 2)[0].inference_stats.fail.count == 2, "no sequences"


async def test_a_stop_does_not_wait_for_shadows(tmp_path: Path, autojump_clock: MockClock) -> None:
    class Slow(fake_backend()):  # type: ignore[misc]  # a class made for this test
        async def execute(self, requests: Sequence[InferenceRequest]) -> Any:
            if self.spec.source.version == 2:
                await trio.sleep(100)
            return await super().execute(requests)

    add_versions(tmp_path, 1, 2)
    add_split(tmp_path, {"targets": [{"model": "m", "version": 1}], "shadows": [{"model": "m", "version": 2}]})
    async with running(tmp_path, backend=Slow, mode=ControlMode.EXPLICIT, load=["s"]) as core:
        await core.infer(to_split())
        await core.unload_model("s")
        await wait_all_tasks_blocked()
        with pytest.raises(NotFound, match="'s' has no available versions"):
            await core.infer(to_split())


async def test_weights_change_while_it_serves(tmp_path: Path) -> None:
    """Through the load call; a wrong change leaves the old split in force. Targets are loaded with it."""
    add_versions(tmp_path, 1, 2)
    add_split(tmp_path, TWO)
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["s"]) as core:
        await served_by(core, 4)
        assert executed(core) == {"m:1": 3, "m:2": 1}

        async def change(split: dict[str, Any]) -> None:
            config = to_json_form(split_config(split))
            await core.load_model("s", LoadParameters(config=json.dumps({k: v for k, v in config.items() if v})))

        await change({"targets": [{"model": "m", "version": 2}]})
        await served_by(core, 4)
        assert executed(core) == {"m:1": 3, "m:2": 5}
        with pytest.raises(InvalidArgument, match="no target has a weight above 0"):
            await change({"targets": []})
        await served_by(core, 1)
        assert executed(core) == {"m:1": 3, "m:2": 6}


async def test_what_does_not_serve_or_fit_is_said_at_load(tmp_path: Path) -> None:
    add_versions(tmp_path, 1)
    add_model(tmp_path, "wide", config=(tmp_path / "m" / "config.pbtxt").read_text().replace("dims: 2", "dims: 3"))
    add_split(tmp_path, {"targets": [{"model": "m", "version": 7}]}, "version")
    add_split(tmp_path, {"targets": [{"model": "nope"}]}, "absent")
    add_split(tmp_path, {"targets": [{"model": "m"}, {"model": "wide"}]}, "unlike")
    add_split(tmp_path, {"targets": [{"model": "m"}], "stick": "x"}, "wrong")
    async with running(tmp_path) as core:
        reasons = {each.name: each.reason for each in await core.repository_index()}
        assert "'m' does not serve: Request for unknown model: 'm' version 7 is not found" in reasons["version"]
        assert "traffic split absent contains models that are not available or ambiguous: nope" in reasons["absent"]
        assert "m:-1 and wide:-1 differ in their inputs" in reasons["unlike"]
        assert "unknown field `stick`" in reasons["wrong"]


async def test_it_is_ready_while_its_targets_are(tmp_path: Path) -> None:
    add_versions(tmp_path, 1)
    add_split(tmp_path, {"targets": [{"model": "m"}]})
    async with running(tmp_path, mode=ControlMode.EXPLICIT, load=["s"]) as core:
        assert core.is_model_ready("s")
        await core.unload_model("m")
        await wait_all_tasks_blocked()
        assert not core.is_model_ready("s")
        with pytest.raises(NotFound, match="'m' has no available versions"):
            await core.infer(to_split())


async def test_an_alias_is_a_split_with_one_target(tmp_path: Path) -> None:
    """Also one of an alias; it is moved while it serves, and what it means is loaded with it."""
    add_versions(tmp_path, 1, 2)
    add_split(tmp_path, {"targets": [{"model": "m", "version": 1}]}, name="stable")
    add_split(tmp_path, {"targets": [{"model": "stable"}]})
    async with running(tmp_path, mode=ControlMode.EXPLICIT) as core:
        await core.load_model("s")
        assert {entry.name: entry.state for entry in await core.repository_index()} == {
            "m": "READY",
            "s": "READY",
            "stable": "READY",
        }
        assert await served_by(core, 2) == {"stable:1": 2}
        assert executed(core) == {"m:1": 2, "m:2": 0, "stable:1": 0}
        moved = to_json_form(split_config({"targets": [{"model": "m", "version": 2}]}))
        await core.load_model("stable", LoadParameters(config=json.dumps(moved)))
        assert await served_by(core, 3) == {"stable:1": 3}
        assert executed(core) == {"m:1": 2, "m:2": 3, "stable:1": 0}
