"""`preserve_ordering` of decoupled models: all of a request's responses before the first of a later one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance.response_stream import BUFFERED_RESPONSES
from actors.mail import turns
from actors.mail.turns import TurnOrder
from actors.model.model import Model
from backends.interface import Backend, BatchTiming, Responder
from protocol.errors import InvalidArgument, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelDynamicBatching, ModelQueuePolicy, ModelTransactionPolicy
from tests.actors.fakes import CONFIG, TIMING, request, spec

ORDERED = replace(
    CONFIG,
    max_batch_size=1,
    dynamic_batching=ModelDynamicBatching(
        preserve_ordering=True, default_queue_policy=ModelQueuePolicy(max_queue_size=20)
    ),
    model_transaction_policy=ModelTransactionPolicy(decoupled=True),
)


class Telling(Backend):
    """Replies a request called `<n>-<seconds>` with n responses, one in each `seconds`; one called `fail` with an
    error."""

    can_be_decoupled = True

    async def load(self) -> None:
        await trio.lowlevel.checkpoint()

    async def execute(self, requests: Sequence[InferenceRequest]) -> None:  # type: ignore[override]  # never called
        raise AssertionError

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        for item, responder in zip(requests, responders, strict=True):
            if item.id == "fail":
                responder.close(InvalidArgument("failed"))
                continue
            count, seconds = item.id.split("-")
            for number in range(int(count)):
                await trio.sleep(float(seconds))
                data = Tensor.from_numpy("OUT", np.zeros((1, 2), np.float32))
                await responder.send(InferenceResponse("m", 1, [data], f"{item.id}:{number}", is_final=False))
            responder.close()
        return TIMING


@pytest.fixture
async def model(nursery: trio.Nursery) -> Model:
    made = Model(ORDERED, 1, Telling, [spec(ORDERED, name=f"m_{number}") for number in range(3)])
    await nursery.start(made.run)
    return made


async def collect(model: Model, id: str, into: list[str]) -> None:
    async def respond(response: InferenceResponse) -> None:
        into.append(response.id)

    try:
        await model.infer_stream(request(id=id), respond)
    except ServerError as error:
        into.append(error.message)


async def ask(model: Model, nursery: trio.Nursery, *ids: str) -> list[str]:
    """Requests in this order; what all of them got, in the order in which it came."""
    got: list[str] = []
    for id in ids:
        nursery.start_soon(collect, model, id, got)
        await wait_all_tasks_blocked()
    return got


async def test_a_quick_request_waits_for_the_end_of_an_earlier_one(
    model: Model, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    got = await ask(model, nursery, "2-1", "3-0.1", "fail")
    assert got == []
    await trio.sleep(1.5)
    assert got == ["2-1:0"], "its own responses leave as they come"
    await trio.sleep(1)
    assert got == ["2-1:0", "2-1:1", "3-0.1:0", "3-0.1:1", "3-0.1:2", "failed"]


async def test_one_that_is_held_does_not_hold_up_its_instance(
    model: Model, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """More responses than the reply channel takes are kept, so the instance is free for the next request."""
    count = 3 * BUFFERED_RESPONSES
    got = await ask(model, nursery, "1-100", f"{count}-0.01", f"{count}-0.01", "1-1")
    await trio.sleep(50)
    assert got == []
    await trio.sleep(60)
    assert len(got) == 2 + 2 * count
    assert got[0] == "1-100:0"
    assert got[-1] == "1-1:0"


async def test_when_its_turn_comes_the_rest_streams(
    model: Model, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    got = await ask(model, nursery, "1-1.5", "3-1")
    await trio.sleep(1.6)
    assert got == ["1-1.5:0", "3-1:0"]
    await trio.sleep(1)
    assert got[-1] == "3-1:1"
    await trio.sleep(1)
    assert got[-1] == "3-1:2"


async def test_a_caller_that_leaves_holds_nobody_up_and_lets_nobody_pass(
    model: Model, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    got = await ask(model, nursery, "1-3")
    with trio.move_on_after(1):
        await collect(model, "1-100", [])
    later = await ask(model, nursery, "1-0.1")
    await trio.sleep(1)
    assert (got, later) == ([], []), "the first one has not ended"
    await trio.sleep(1.5)
    assert (got, later) == (["1-3:0"], ["1-0.1:0"])


async def test_what_is_held_is_bounded(
    model: Model, nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MAX_HELD_BYTES", 80)  # ten responses
    got = await ask(model, nursery, "1-10", "11-0.1", "10-0.1")
    await trio.sleep(20)
    assert got[0] == "1-10:0"
    assert got[11].startswith("model 'm' preserves the order of requests")
    assert got[12:] == [f"10-0.1:{number}" for number in range(10)]


async def test_refusals_keep_their_place(model: Model, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """What a full queue refuses is not told before the responses of requests that were there earlier."""
    running = ["1-1", "1-1", "1-1"]
    queued = ["1-0.1"] * 20
    got = await ask(model, nursery, *running, *queued, "1-9")
    await trio.sleep(10)
    assert len(got) == 24
    assert got[-1].endswith("Exceeds maximum queue size")
    assert {reason.value: count for reason, count in model.statistics.failures.items() if count} == {"REJECTED": 1}


def test_the_first_has_its_turn_and_leaving_passes_it_on() -> None:
    order = TurnOrder()
    first, second, third = order.join(), order.join(), order.join()
    assert [turn.has_begun for turn in (first, second, third)] == [True, False, False]
    second.leave()
    assert not third.has_begun
    first.leave()
    assert third.has_begun
    third.leave()
    assert order.join().has_begun


def test_too_much_to_hold_says_so() -> None:
    turn = TurnOrder().join()
    big = Tensor.from_numpy("OUT", np.zeros(turns.MAX_HELD_BYTES, np.uint8))
    turn.hold(InferenceResponse("m", 1, [big]))
    with pytest.raises(Unavailable, match="'m' preserves the order"):
        turn.hold(InferenceResponse("m", 1, [Tensor.from_numpy("OUT", np.zeros(1, np.uint8))]))
