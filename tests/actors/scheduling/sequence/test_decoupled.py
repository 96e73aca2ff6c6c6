"""Decoupled models with sequences: states that come with responses, streams that end late, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance.response_stream import BUFFERED_RESPONSES
from actors.model.model import Model
from backends.interface import Backend, BatchTiming, InstanceDied, Rescheduled, Responder
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelConfig, ModelTransactionPolicy, SequenceState, StrategyOldest
from tests.actors.fakes import TIMING, spec, tensor
from tests.actors.scheduling.sequence.sequences import config

SUM = SequenceState("SUM_IN", "SUM_OUT", DataType.FP32, (2,))
ZERO = {"SUM_IN": Tensor.from_numpy("SUM_IN", np.zeros((1, 2), dtype=np.float32))}
DECOUPLED = ModelTransactionPolicy(decoupled=True)


class Telling(Backend):
    """Adds IN to the sum of its sequence, and gives it from a task of its own: to a request called `<n>-<seconds>` n
    times, one each `seconds`. One called `fail` gives it once and then fails, one called `wrong` gives a sum that is
    none, and one called `<n>x` takes n rounds with `burst` responses each. `die` makes the instance die after its first
    response.
    """

    can_be_decoupled = True
    burst = 1
    tasks: trio.Nursery

    async def load(self) -> None:
        self.rounds: dict[object, int] = {}

    async def execute(self, requests: Sequence[InferenceRequest]) -> None:  # type: ignore[override]  # never called
        raise AssertionError

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        for request, responder in zip(requests, responders, strict=True):
            self.tasks.start_soon(self._answer, request, responder)
        await trio.lowlevel.checkpoint()
        if any(request.id == "die" for request in requests):
            await trio.sleep(1)
            raise InstanceDied("died")
        return TIMING

    async def _answer(self, request: InferenceRequest, responder: Responder) -> None:
        inputs = {each.name: each.as_numpy() for each in request.inputs}
        total = inputs["IN"] + inputs.get("SUM_IN", np.zeros((1, 2), np.float32))
        if request.id == "wrong":
            total = total.astype(np.float64)
        if request.id.endswith("x"):
            await self._answer_round(request, responder, total)
            return
        count, _, seconds = request.id.partition("-")
        for number in range(int(count) if seconds else 1):
            await trio.sleep(float(seconds or 0))
            await responder.send(_response(f"{request.id}:{number}", total))
        responder.close(InvalidArgument("failed") if request.id == "fail" else None)

    async def _answer_round(self, request: InferenceRequest, responder: Responder, total: np.ndarray) -> None:
        done = self.rounds[request.sequence_id] = self.rounds.get(request.sequence_id, 0) + 1
        for _ in range(self.burst):
            await responder.send(_response(str(done), total))
        responder.close(Rescheduled() if done < int(request.id[:-1]) else None)


def _response(id: str, total: np.ndarray) -> InferenceResponse:
    outputs = [Tensor.from_numpy("OUT", total), Tensor.from_numpy("SUM_OUT", total)]
    return InferenceResponse("m", 1, outputs, id, is_final=False)


async def start(nursery: trio.Nursery, of: ModelConfig, *, burst: int = 1, instances: int = 1) -> Model:
    backend = type("TestTelling", (Telling,), {"burst": burst, "tasks": nursery})
    of = replace(of, model_transaction_policy=DECOUPLED)
    specs = [spec(of, name=f"m_{number}") for number in range(instances)]
    model = Model(of, 1, backend, specs, initial_states=ZERO)
    await nursery.start(model.run)
    return model


def ask(id: str, sequence: int, value: float = 1.0, *, start: bool = False, end: bool = False) -> InferenceRequest:
    return InferenceRequest(
        "m", [tensor(value=value)], id=id, sequence_id=sequence, sequence_start=start, sequence_end=end
    )


class Heard:
    """What callers got: the ids of responses, their sums, and the errors that ended them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.ids: list[str] = []
        self.sums: list[float] = []
        self.names: set[str] = set()
        self.errors: list[ServerError] = []

    async def ask(self, request: InferenceRequest) -> None:
        async def respond(response: InferenceResponse) -> None:
            self.ids.append(response.id)
            self.names |= {each.name for each in response.outputs}
            self.sums.append(float(response.outputs[0].as_numpy()[0, 0]))

        try:
            await self._model.infer_stream(request, respond)
        except ServerError as error:
            self.errors.append(error)


async def test_the_last_responses_states_are_those_of_the_next_step(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Which waits for the stream's end, although its instance was free before; and clients see no states."""
    model = await start(nursery, config(state=(SUM,)))
    heard = Heard(model)
    async with trio.open_nursery() as callers:
        callers.start_soon(heard.ask, ask("2-1", 1, 5, start=True))
        await wait_all_tasks_blocked()
        callers.start_soon(heard.ask, ask("1-0", 1, 7, end=True))
    assert heard.ids == ["2-1:0", "2-1:1", "1-0:0"]
    assert heard.sums == [5, 5, 12]
    assert heard.names == {"OUT"}


async def test_a_stream_that_fails_leaves_the_states_as_they_were(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    heard = Heard(await start(nursery, config(state=(SUM,))))
    for id, value in (("1-0", 5), ("fail", 100), ("wrong", 1000), ("1-0", 1)):
        await heard.ask(ask(id, 1, value, start=not heard.ids))
    assert heard.sums == [5, 105, 6]
    assert [type(error) for error in heard.errors] == [InvalidArgument, Internal]
    assert "the configuration expects TYPE_FP32 of shape [1, 2]" in str(heard.errors[1])


async def test_an_iterative_model_keeps_its_memory_with_the_server(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    heard = Heard(await start(nursery, config(state=(SUM,), iterative=True)))
    await heard.ask(ask("4x", 0, 2))
    assert heard.sums == [2, 4, 6, 8]


async def test_a_slow_reader_only_delays_the_next_round(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A round's batch has ended long before its caller has taken all responses."""
    burst = 2 * BUFFERED_RESPONSES
    model = await start(nursery, config(iterative=True), burst=burst)
    ids: list[str] = []

    async def respond(response: InferenceResponse) -> None:
        await trio.sleep(0.1)
        ids.append(response.id)

    assert await model.infer_stream(ask("2x", 0), respond) is False
    assert ids == ["1"] * burst + ["2"] * burst


async def test_a_stream_that_goes_on_ends_with_its_instance(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    heard = Heard(await start(nursery, config(state=(SUM,))))
    async with trio.open_nursery() as callers:
        callers.start_soon(heard.ask, ask("9-5", 1, start=True))
        callers.start_soon(heard.ask, ask("die", 2, start=True))
    assert {type(error) for error in heard.errors} <= {InstanceDied}
    assert heard.errors


async def test_a_drain_waits_for_streams_that_go_on(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        model = await start(nursery, config(state=(SUM,)))
        heard = Heard(model)
        nursery.start_soon(heard.ask, ask("3-1", 1, start=True))
        await trio.sleep(0.5)
        model.drain()
    assert len(heard.ids) == 3


ORDERED = StrategyOldest(max_candidate_sequences=1, preserve_ordering=True)


async def test_all_responses_of_a_request_leave_before_those_of_the_next(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """In the order in which they became candidates, over two instances."""
    heard = Heard(await start(nursery, config(max_batch_size=1, oldest=ORDERED), instances=2))
    async with trio.open_nursery() as callers:
        for request in (ask("2-3", 1, start=True), ask("3-1", 2, start=True)):
            callers.start_soon(heard.ask, request)
            await wait_all_tasks_blocked()
    assert heard.ids == ["2-3:0", "2-3:1", "3-1:0", "3-1:1", "3-1:2"]


async def test_a_request_in_the_backlog_holds_nobody_up(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Nor does one that is refused or abandoned."""
    heard = Heard(await start(nursery, config(max_batch_size=1, oldest=ORDERED)))
    async with trio.open_nursery() as callers:
        callers.start_soon(heard.ask, ask("1-1", 1, start=True))
        await wait_all_tasks_blocked()
        callers.start_soon(heard.ask, ask("1-2", 2, start=True))  # has no slot before the first sequence ends
        await wait_all_tasks_blocked()
        await heard.ask(ask("1-3", 3))
        assert "must specify the START flag" in str(heard.errors[0])
        with trio.move_on_after(0.5):
            await heard.ask(ask("1-4", 4, start=True))
        await heard.ask(ask("1-5", 1, end=True))
    assert heard.ids == ["1-1:0", "1-5:0", "1-2:0"]


@pytest.mark.parametrize("seed", range(20))
async def test_random_callers_of_an_ordered_model_are_all_answered(
    autojump_clock: MockClock, nursery: trio.Nursery, seed: int
) -> None:
    """Some go away; those that stay get all of theirs, each before the next begins."""
    random = np.random.default_rng(seed)
    oldest = StrategyOldest(max_candidate_sequences=2, preserve_ordering=True)
    heard = Heard(await start(nursery, config(max_batch_size=2, oldest=oldest, idle_us=10**9), instances=2))
    stay: list[str] = []

    async def call(sequence: int) -> None:
        await trio.sleep(float(random.integers(0, 4)))
        for number in range(3):
            count = int(random.integers(1, 4))
            id = f"{count}-{random.integers(0, 3)}.00{sequence}{number}"
            request = ask(id, sequence, start=number == 0, end=number == 2)
            with trio.move_on_after(2 if random.random() < 0.2 else 500) as scope:
                await heard.ask(request)
            if scope.cancelled_caught:
                return
            stay.extend(f"{id}:{place}" for place in range(count))

    async with trio.open_nursery() as callers:
        for sequence in range(1, 7):
            callers.start_soon(call, sequence)
    assert not heard.errors
    assert set(stay) <= set(heard.ids)
    assert len(set(heard.ids)) == len(heard.ids)
    assert len(list(groupby(heard.ids, _request_of))) == len(set(map(_request_of, heard.ids)))


def _request_of(response_id: str) -> str:
    return response_id.partition(":")[0]
