"""Decoupled models: any number of responses for a request, also after the batch was handed back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance.response_stream import BUFFERED_RESPONSES
from actors.metrics.statistics import FailureReason
from actors.model.model import Model
from backends.interface import Backend, BatchTiming, InstanceDied, Responder
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unavailable, Unsupported
from protocol.limits.request_memory import RequestMemory
from protocol.limits.response_memory import MAX_WAITING_BYTES, ResponseMemory
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelTransactionPolicy
from tests.actors.fakes import CONFIG, TIMING, fake_backend, request, spec

DECOUPLED = replace(CONFIG, model_transaction_policy=ModelTransactionPolicy(decoupled=True))


class Counting(Backend):
    """Replies a request called `<n>` or `<n>-<word>` with n responses, one a second, from a task of its own."""

    can_be_decoupled = True
    sent = 0

    async def load(self) -> None:
        type(self).sent = 0

    async def execute(self, requests: Sequence[InferenceRequest]) -> None:  # type: ignore[override]  # never called
        raise AssertionError

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        for item, responder in zip(requests, responders, strict=True):
            await self._answer(item, responder)
        return TIMING

    async def _answer(self, item: InferenceRequest, responder: Responder) -> None:
        count, _, word = item.id.partition("-")
        if word == "raise":
            raise InvalidArgument("raised")
        for number in range(int(count)):
            await trio.sleep(1)
            if responder.is_cancelled:
                break
            is_final = word == "final" and number == int(count) - 1
            await responder.send(InferenceResponse("m", 1, [], f"{item.id}:{number}", is_final=is_final))
            type(self).sent += 1
        if word == "die":
            raise InstanceDied("died")
        responder.close(InvalidArgument("in the middle") if word == "error" else None)
        await responder.send(InferenceResponse("m", 1, [], "too late"))


async def collect(model: Model, id: str, into: list[str]) -> bool:
    async def respond(response: InferenceResponse) -> None:
        into.append(response.id)

    return await model.infer_stream(request(id=id), respond)


@pytest.fixture
async def model(nursery: trio.Nursery) -> Model:
    made = Model(DECOUPLED, 1, Counting, [spec(DECOUPLED)])
    await nursery.start(made.run)
    return made


@pytest.mark.parametrize(("id", "count", "is_final"), [("3-final", 3, True), ("2", 2, False), ("0", 0, False)])
async def test_responses_come_in_order_and_the_end_is_known(
    model: Model, id: str, count: int, is_final: bool, autojump_clock: MockClock
) -> None:
    got: list[str] = []
    assert await collect(model, id, got) is is_final
    assert got == [f"{id}:{number}" for number in range(count)]
    await wait_all_tasks_blocked()
    statistics = model.statistics.frozen("m", 1)
    assert (statistics.inference_count, statistics.execution_count) == (1, 1)
    assert statistics.inference_stats.success.count == statistics.inference_stats.queue.count == 1


@pytest.mark.parametrize(
    ("id", "error", "text"),
    [
        ("2-error", InvalidArgument, "in the middle"),
        ("2-die", InstanceDied, "died"),
        ("0-raise", InvalidArgument, "raised"),
    ],
)
async def test_an_error_comes_after_the_responses(
    model: Model, id: str, error: type[Exception], text: str, autojump_clock: MockClock
) -> None:
    got: list[str] = []
    with pytest.raises(error, match=text):
        await collect(model, id, got)
    assert len(got) == int(id[0])
    await wait_all_tasks_blocked()
    assert model.statistics.failures[FailureReason.BACKEND] == 1


async def test_a_caller_that_leaves_is_seen_by_the_model(model: Model, autojump_clock: MockClock) -> None:
    with trio.move_on_after(2.5):
        await collect(model, "100", [])
    got: list[str] = []
    assert not await collect(model, "1", got)
    assert got == ["1:0"]
    await wait_all_tasks_blocked()
    assert model.statistics.failures[FailureReason.CANCELED] == 1
    assert model.statistics.frozen("m", 1).inference_count == 1


async def test_a_slow_caller_slows_the_model_down(model: Model, autojump_clock: MockClock) -> None:
    taken: list[str] = []

    async def slowly(response: InferenceResponse) -> None:
        await trio.sleep(1000)
        taken.append(response.id)

    with trio.move_on_after(1500):
        await model.infer_stream(request(id="500"), slowly)
    assert len(taken) == 1
    assert Counting.sent == BUFFERED_RESPONSES + 2, "one taken, one in the caller's hands, the rest in the buffer"


class Large(Counting):
    """Its responses have as many bytes as may wait for a call."""

    async def _answer(self, item: InferenceRequest, responder: Responder) -> None:
        tensor = Tensor("OUT", DataType.UINT8, (MAX_WAITING_BYTES,), bytes(MAX_WAITING_BYTES))
        for number in range(int(item.id)):
            await responder.send(InferenceResponse("m", 1, [tensor], f"{item.id}:{number}", is_final=False))
            type(self).sent += 1
        responder.close()


async def test_a_slow_caller_of_large_responses_slows_the_model_down_at_once(nursery: trio.Nursery) -> None:
    """No more bytes wait for it than may, over all of its requests; another caller is served meanwhile, and what is
    left when it leaves counts no more."""
    model = Model(DECOUPLED, 1, Large, [spec(DECOUPLED)])
    await nursery.start(model.run)
    server = RequestMemory(1 << 40)
    mine = ResponseMemory(server)
    reads = trio.Semaphore(0)

    async def slowly(response: InferenceResponse) -> None:
        await reads.acquire()

    async def call(count: int) -> None:
        await model.infer_stream(replace(request(id=str(count)), response_memory=mine), slowly)

    async with trio.open_nursery() as slow:
        for _ in range(3):
            slow.start_soon(call, 50)
        await wait_all_tasks_blocked()
        assert (Large.sent, server.held) == (1, MAX_WAITING_BYTES)
        reads.release()
        await wait_all_tasks_blocked()
        assert (Large.sent, server.held) == (2, MAX_WAITING_BYTES)
        slow.cancel_scope.cancel()
    await wait_all_tasks_blocked()
    assert (mine.held, server.held) == (0, 0)
    got: list[str] = []
    await collect(model, "5", got)
    assert len(got) == 5


async def test_draining_waits_for_open_streams(autojump_clock: MockClock) -> None:
    model = Model(DECOUPLED, 1, Counting, [spec(DECOUPLED)])
    got: list[str] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        nursery.start_soon(collect, model, "5", got)
        await wait_all_tasks_blocked()
        model.drain()
    assert len(got) == 5


async def test_stopping_now_ends_the_streams(autojump_clock: MockClock) -> None:
    model = Model(DECOUPLED, 1, Counting, [spec(DECOUPLED)])
    async with trio.open_nursery() as callers, trio.open_nursery() as nursery:
        await nursery.start(model.run)

        async def call() -> None:
            with pytest.raises(Unavailable):
                await collect(model, "100", [])

        callers.start_soon(call)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()


async def test_a_single_answer_cannot_be_asked_of_a_decoupled_model(model: Model, autojump_clock: MockClock) -> None:
    with pytest.raises(Unsupported, match="'m' is decoupled"):
        await model.infer(request())


async def test_a_model_with_single_answers_can_be_streamed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    plain = Model(CONFIG, 1, fake_backend(), [spec()])
    await nursery.start(plain.run)
    got: list[str] = []
    assert await collect(plain, "one", got)
    assert got == ["one"]
