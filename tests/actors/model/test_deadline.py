"""The `timeout` parameter as a deadline, where no queue policy takes it."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.metrics.statistics import FailureReason
from actors.model.deadline import queue_takes_timeout
from actors.model.model import Model
from protocol.errors import DeadlineExceeded
from protocol.messages import InferenceRequest
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from tests.actors.fakes import CONFIG, fake_backend, request, spec


def timed(microseconds: int, *, id: str = "") -> InferenceRequest:
    made = request(4, id=id)
    made.timeout_microseconds = microseconds
    return made


async def test_a_request_that_is_late_is_stopped_and_told_so(autojump_clock: MockClock) -> None:
    """In the queue or running; it counts as cancelled, and one that is in time is answered."""
    backend = fake_backend(seconds=2)
    served = Model(CONFIG, 1, backend, [spec()])
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        nursery.start_soon(served.infer, request(4, id="first"))
        await wait_all_tasks_blocked()
        with pytest.raises(DeadlineExceeded) as caught:
            await served.infer(timed(1_000_000, id="queued"))
        assert caught.value.message == (
            "[request id: queued] timeout of 1000000 microseconds expired before model 'm' answered"
        )
        assert trio.current_time() == 1
        with pytest.raises(DeadlineExceeded, match="<id_unknown>"):
            await served.infer(timed(2_000_000))
        assert trio.current_time() == 3
        assert (await served.infer(timed(10_000_000, id="in time"))).id == "in time"
        served.drain()
    assert backend.batches == [["first"], [""], ["in time"]]
    assert served.statistics.failures[FailureReason.CANCELED] == 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", False),
        ("dynamic_batching { }", False),
        ("dynamic_batching { default_queue_policy { default_timeout_microseconds: 5 } }", False),
        ("dynamic_batching { default_queue_policy { allow_timeout_override: true } }", False),
        (
            "dynamic_batching { default_queue_policy { allow_timeout_override: true "
            "default_timeout_microseconds: 5 } }",
            True,
        ),
        (
            "dynamic_batching { priority_queue_policy { key: 1 value { allow_timeout_override: true "
            "default_timeout_microseconds: 5 } } }",
            True,
        ),
        ("sequence_batching { }", True),
    ],
)
def test_where_the_queue_takes_it(config: str, expected: bool) -> None:
    assert queue_takes_timeout(parse_pbtxt(f'name: "m" {config}', source="test")) is expected


async def test_where_the_queue_takes_it_it_limits_only_the_queue(autojump_clock: MockClock) -> None:
    batching = parse_pbtxt(
        "dynamic_batching { default_queue_policy { allow_timeout_override: true "
        "default_timeout_microseconds: 9000000 } }",
        source="test",
    ).dynamic_batching
    config: ModelConfig = msgspec.structs.replace(CONFIG, dynamic_batching=batching)
    served = Model(config, 1, fake_backend(seconds=2), [spec(config)])
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        assert (await served.infer(timed(1_000_000, id="slow"))).id == "slow"
        served.drain()
