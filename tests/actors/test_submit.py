"""Requests whose caller does not wait in a task: what `submit` does with each, and how they end."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ServerCore
from protocol.errors import Cancelled, ServerError, Unavailable
from protocol.messages import InferenceResponse
from protocol.reactor.replies import PendingReply, Replies
from tests.actors.core.test_server_core import PBTXT, add_model, running
from tests.actors.fakes import fake_backend, request

DELAYED = PBTXT.replace("dynamic_batching {", "dynamic_batching { max_queue_delay_microseconds: 2000000")
DECOUPLED = PBTXT + "model_transaction_policy { decoupled: true }"


class Box:
    """Takes replies, in the order in which they come."""

    def __init__(self) -> None:
        self.replies: list[InferenceResponse | ServerError] = []

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        self.replies.append(value)

    @property
    def ids(self) -> list[str]:
        return [each.id if isinstance(each, InferenceResponse) else type(each).__name__ for each in self.replies]


async def until_answered(core: ServerCore) -> None:
    await wait_all_tasks_blocked()
    assert not core.accepted()


async def test_an_answer_comes_by_a_call(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=PBTXT)
    box = Box()
    async with running(tmp_path, backend=fake_backend()) as core:
        submitted = core.submit(request(1, id="a"), box)
        assert core.accepted() == {("m", 1): 1}
        await wait_all_tasks_blocked()
        assert box.ids == ["a"]
        submitted.end()
        await until_answered(core)
        assert core.cancel("m", "a") == 0
        (statistics,) = core.model_statistics("m")
        assert statistics.inference_count == 1


class Edge(PendingReply):
    """One request of an edge, which keeps nothing of it."""

    def deliver(self) -> None:
        self.let_go().end()


@pytest.mark.slow
@pytest.mark.parametrize("is_given_up", [False, True])
async def test_requests_leave_no_circles(tmp_path: Path, is_given_up: bool) -> None:
    """Their tensors are free with the answer, and not when garbage is looked for."""
    add_model(tmp_path, "m", config=PBTXT)
    replies = Replies()
    async with running(tmp_path, backend=fake_backend()) as core:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                asked = Edge(replies)
                asked.submitted = core.submit(request(1), asked, later=True)
                if is_given_up:
                    asked.let_go().give_up()
                core.flush()
                await wait_all_tasks_blocked()
                assert (asked.reply is None) == is_given_up
                assert asked.submitted is None
            del asked
            gc.collect()
            left = {type(found).__name__ for found in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert not left & {"Edge", "QueuedSubmission", "QueuedRequest", "InferenceRequest", "InferenceResponse", "Tensor"}


async def test_a_burst_shares_a_batch(tmp_path: Path) -> None:
    """Nothing of it runs before `flush`; what is submitted otherwise does."""
    add_model(tmp_path, "m", config=PBTXT)
    backend, box = fake_backend(), Box()
    async with running(tmp_path, backend=backend) as core:
        taken = [core.submit(request(1, id=id), box, later=True) for id in ("a", "b", "c")]
        await wait_all_tasks_blocked()
        assert backend.batches == []
        core.flush()
        core.flush()  # there is nothing more
        await wait_all_tasks_blocked()
        assert backend.batches == [["a", "b", "c"]]
        assert box.ids == ["a", "b", "c"]
        for each in taken:
            each.end()


async def test_a_delay_holds_for_bursts(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m", config=DELAYED)
    backend, box = fake_backend(), Box()
    async with running(tmp_path, backend=backend) as core:
        began = trio.current_time()
        first = core.submit(request(1, id="a"), box, later=True)
        core.flush()
        await trio.sleep(1)
        second = core.submit(request(1, id="b"), box, later=True)
        core.flush()
        assert backend.batches == []
        await trio.sleep_until(began + 1.9)
        assert backend.batches == []
        await trio.sleep_until(began + 2.1)
        assert backend.batches == [["a", "b"]]
        for each in (first, second):
            each.end()


async def test_what_is_given_up_before_its_burst_is_over_does_not_run(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=PBTXT)
    backend, box = fake_backend(), Box()
    async with running(tmp_path, backend=backend) as core:
        gone = core.submit(request(1, id="gone"), box, later=True)
        kept = core.submit(request(1, id="kept"), box, later=True)
        gone.give_up()
        core.flush()
        await wait_all_tasks_blocked()
        assert backend.batches == [["kept"]]
        assert box.ids == ["kept"]
        kept.end()


async def test_cancelling_by_id(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One that runs, and one that waits: both are answered at once, and once."""
    add_model(tmp_path, "m", config=PBTXT)
    box = Box()
    async with running(tmp_path, backend=fake_backend(seconds=5)) as core:
        taken = [core.submit(request(1, id="a"), box), core.submit(request(1, id="a"), box)]
        await wait_all_tasks_blocked()
        assert core.cancel("m", "a", 1) == 2
        assert core.cancel("m", "a") == 0
        assert [type(each) for each in box.replies] == [Cancelled, Cancelled]
        for each in taken:
            each.end()
        await trio.sleep(10)
        assert len(box.replies) == 2
        (snapshot,) = core.snapshots()
        assert snapshot.failures["CANCELED"] == 2


async def test_a_decoupled_model_refuses(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=DECOUPLED)
    backend = fake_backend()
    backend.can_be_decoupled = True
    box = Box()
    async with running(tmp_path, backend=backend) as core:
        core.submit(request(1), box).end()
        assert box.ids == ["Decoupled"]
        assert not core.accepted()


async def test_wrong_requests_and_a_server_that_stops(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=PBTXT)
    box = Box()
    async with running(tmp_path) as core:
        wrong = request(1, id="wrong")
        wrong.inputs[0].name = "OTHER"
        core.submit(wrong, box).end()
        nobody = request(1, id="wrong")
        nobody.model_name = "nobody"
        core.submit(nobody, box).give_up()
        assert not core.accepted()
        assert core.cancel("m", "wrong") == 0
        core.stop()
        core.submit(request(1), box).end()
        with pytest.raises(Unavailable):
            await core.infer(request(1))
    assert [str(reply) for reply in box.replies] == [
        "unexpected inference input 'OTHER' for model 'm'",
        "Request for unknown model: 'nobody' is not found",
        "Server exiting",
    ]
