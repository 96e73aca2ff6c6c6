"""Each batch that a worker has ends once, whatever another one's end raises."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio

from backends.interface import BatchResult, BatchTiming
from backends.python.batches.open_batch import OpenBatch
from backends.python.batches.open_batches import OpenBatches
from backends.python.wire.channel import Channel, Handlers
from protocol.errors import Internal
from protocol.messages import InferenceRequest
from protocol.sync.signal import Signal

RESULT = BatchResult((), BatchTiming(0, 0, 0))
Ends = list[BatchResult | Exception]


class Injected(Exception):
    """What is raised on purpose."""


@pytest.fixture
def found() -> Iterator[OpenBatches]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield OpenBatches(Channel(ours, Handlers()), concurrency=1, byte_limit=1 << 20)


def add(found: OpenBatches, number: int) -> tuple[OpenBatch, Ends]:
    ends: Ends = []
    batch = found.by_number[number] = OpenBatch(number, (), done=ends.append)
    return batch, ends


def broken() -> None:
    raise Injected


async def test_a_batch_is_ended_though_the_next_one_could_not_be_called_for(found: OpenBatches) -> None:
    batch, ends = add(found, 1)
    found.room.enter(0)
    found.room.offer(broken)
    with pytest.raises(Injected):
        found.close(batch, RESULT)
    assert ends == [RESULT]


async def test_all_are_failed_though_the_end_of_one_raises(found: OpenBatches) -> None:
    error = Internal("gone")
    _, first = add(found, 1)
    second, _ = add(found, 2)
    second.done = lambda result: broken()
    _, third = add(found, 3)
    with pytest.raises(Injected):
        found.fail_open(error)
    assert (first, third) == ([error], [error])
    assert not found.has_any


async def test_who_waits_hears_of_the_end_though_others_cannot_be_woken(
    found: OpenBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _ = add(found, 1)
    batch.executed = Signal()
    monkeypatch.setattr(found.room, "wake_all", broken)
    with pytest.raises(Injected):
        found.end()
    with trio.fail_after(1):
        await batch.executed.wait()


def test_output_belongs_to_the_only_request_that_runs(found: OpenBatches) -> None:
    assert found.tags_now() == {}
    one = found.by_number[1] = OpenBatch(1, (InferenceRequest("m", [], id="one"),))
    assert found.tags_now() == found.tags_of(1) == {"request_id": "one"}
    found.by_number[2] = OpenBatch(2, (InferenceRequest("m", [], id="two"), InferenceRequest("m", [], id="three")))
    assert found.tags_now() == {}
    assert found.tags_of(2) == {"request_ids": ("two", "three"), "request_count": 2}
    found.close(one)
    assert (found.tags_now(), found.tags_of(1)) == ({}, {})
