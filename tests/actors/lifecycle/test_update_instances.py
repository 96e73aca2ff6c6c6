"""Instances that are added to and removed from a model that serves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode
from actors.model.model import Model
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument, Unavailable
from repository.json_form import to_json_form
from repository.model_config import InstanceKind
from tests.actors.core.test_server_core import PBTXT, add_model, running
from tests.actors.fakes import CONFIG, FakeBackend, fake_backend, request, spec


def model(backend: type[FakeBackend], instances: int = 1, *, kind: InstanceKind = InstanceKind.CPU) -> Model:
    return Model(CONFIG, 1, backend, [replace(spec(name=f"m_{number}"), kind=kind) for number in range(instances)])


def loaded(backend: type[FakeBackend]) -> list[str]:
    return sorted(made.spec.name for made in backend.made if made.is_loaded)


async def test_instances_are_added_and_take_requests(autojump_clock: MockClock) -> None:
    backend = fake_backend(seconds=1.0)
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await served.infer(request(4))
        await served.update_instances(model(backend, 3))
        assert served.is_ready
        assert loaded(backend) == ["m_0", "m_1", "m_2"]
        began = trio.current_time()
        async with trio.open_nursery() as calls:
            for _ in range(3):
                calls.start_soon(served.infer, request(4))
        assert trio.current_time() - began == 1.0, "all three have worked at once"
        assert served.statistics.frozen("m", 1).inference_count == 16, "its statistics go on"
        served.drain()
    assert loaded(backend) == []


async def test_instances_finish_their_batch_before_they_go(autojump_clock: MockClock) -> None:
    backend = fake_backend(seconds=1.0)
    served = model(backend, 3)
    answered: list[str] = []

    async def call(id: str) -> None:
        answered.append((await served.infer(request(4, id=id))).id)

    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        async with trio.open_nursery() as calls:
            for id in ("a", "b", "c"):
                calls.start_soon(call, id)
            await wait_all_tasks_blocked()
            await served.update_instances(model(backend, 1))
            await wait_all_tasks_blocked()
            assert served.is_ready
            assert served.instance_count == 1
            assert len(loaded(backend)) == 3, "each has its batch"
            for id in ("d", "e"):
                calls.start_soon(call, id)
        assert sorted(answered) == ["a", "b", "c", "d", "e"]
        await wait_all_tasks_blocked()
        assert len(loaded(backend)) == 1
        assert len(backend.made) == 3
        served.drain()


async def test_other_instances_replace_those_that_are_not_alike(autojump_clock: MockClock) -> None:
    """Each under a name of its own, and the new ones serve before the old ones go."""
    backend = fake_backend()
    served = model(backend, 2)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await served.update_instances(model(backend, 2, kind=InstanceKind.MODEL))
        await wait_all_tasks_blocked()
        assert loaded(backend) == ["m_2", "m_3"]
        await served.update_instances(model(backend, 1, kind=InstanceKind.MODEL))
        await served.update_instances(model(backend, 2, kind=InstanceKind.MODEL))
        await wait_all_tasks_blocked()
        assert len(loaded(backend)) == 2
        assert served.is_ready
        assert (await served.infer(request(id="served"))).id == "served"
        served.drain()


async def test_a_failed_addition_changes_nothing(autojump_clock: MockClock) -> None:
    def fail_third(backend: FakeBackend) -> None:
        if backend.spec.name == "m_2":
            raise InvalidArgument("no room")

    backend = fake_backend(on_load=fail_third)
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        with pytest.raises(InvalidArgument, match="no room"):
            await served.update_instances(model(backend, 3))
        await wait_all_tasks_blocked()
        assert loaded(backend) == ["m_0"]
        assert served.is_ready
        assert (await served.infer(request(id="served"))).id == "served"
        served.drain()
    with pytest.raises(Unavailable):
        await served.update_instances(model(backend, 2))


async def test_an_instance_that_is_removed_while_it_is_dead_stays_dead(autojump_clock: MockClock) -> None:
    backend = fake_backend()
    served = model(backend, 2)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        backend.made[1].die()
        await wait_all_tasks_blocked()
        await served.update_instances(model(backend, 1))
        await trio.sleep(60)
        assert len(loaded(backend)) == 1
        assert served.is_ready
        served.drain()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.3, 1.0, 2.5])), max_size=8))
@settings(max_examples=50, deadline=None)
def test_no_request_is_lost_whatever_the_changes(changes: Sequence[tuple[int, float]]) -> None:
    async def scenario() -> None:
        backend = fake_backend(seconds=1.0)
        served = model(backend, 2)
        answered: list[str] = []

        async def call(id: str) -> None:
            answered.append((await served.infer(request(2, id=id))).id)

        async with trio.open_nursery() as nursery:
            await nursery.start(served.run)
            async with trio.open_nursery() as calls:
                for number, (count, pause) in enumerate(changes):
                    for caller in range(3):
                        calls.start_soon(call, f"{number} {caller}")
                    await served.update_instances(model(backend, count))
                    assert served.is_ready
                    await trio.sleep(pause)
            await wait_all_tasks_blocked()
            assert len(answered) == len(set(answered)) == 3 * len(changes)
            assert len(loaded(backend)) == (changes[-1][0] if changes else 2)
            served.drain()
        assert loaded(backend) == []

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


async def test_a_load_with_other_instance_groups_loads_those_alone(tmp_path: Path) -> None:
    """By the file or by the call; anything else in the configuration is a whole load."""
    directory = add_model(tmp_path, "m")
    backend = fake_backend()
    async with running(tmp_path, backend=backend, mode=ControlMode.EXPLICIT, load=["m"]) as core:
        await core.infer(request())
        (directory / "config.pbtxt").write_text(f"{PBTXT} instance_group {{ count: 3 }}")
        await core.load_model("m")
        assert len(backend.made) == 3
        assert core.model_config("m")["instance_group"][0]["count"] == 3
        assert [each.inference_count for each in core.model_statistics("m")] == [1]
        shown = to_json_form(CONFIG)
        await core.load_model("m", LoadParameters(config=json.dumps({**shown, "instance_group": [{"count": 2}]})))
        await wait_all_tasks_blocked()
        assert len(backend.made) == 3
        assert len(loaded(backend)) == 2
        assert [each.inference_count for each in core.model_statistics("m")] == [1]
        await core.load_model(
            "m", LoadParameters(config=json.dumps({**shown, "instance_group": [{"count": 2}], "max_batch_size": 2}))
        )
        assert len(backend.made) == 5
        assert [each.inference_count for each in core.model_statistics("m")] == [0]
