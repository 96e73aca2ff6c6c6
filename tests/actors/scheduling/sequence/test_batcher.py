"""The sequence batcher with real instances and a backend that adds up, under virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance.instance import ModelInstance
from actors.mail.messages import (
    Abandon,
    BatchDone,
    Drain,
    Execute,
    InstanceAddress,
    InstanceReady,
    SchedulerAddress,
    SchedulerMessage,
    StoppedAccepting,
    Submit,
)
from actors.metrics.statistics import FailureReason, VersionStatistics
from actors.scheduling.sequence.batcher import SequenceBatcher, sequence_batcher
from backends.interface import Backend, BatchResult, BatchTiming, InstanceDied, InstanceSpec, Rescheduled, Responder
from protocol.datatypes import DataType
from protocol.errors import Cancelled, Internal, InvalidArgument, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import (
    Control,
    ControlInput,
    ControlKind,
    ModelConfig,
    ModelTransactionPolicy,
    SequenceState,
    StrategyDirect,
    StrategyOldest,
)
from tests.actors.fakes import TIMING, spec
from tests.actors.scheduling.sequence.sequences import END, START, Caller, config

SUM = SequenceState("SUM_IN", "SUM_OUT", DataType.FP32, (2,))
READY = ControlInput("READY", (Control(ControlKind.SEQUENCE_READY, bool_false_true=(False, True)),))
ZERO = {"SUM_IN": Tensor.from_numpy("SUM_IN", np.zeros((1, 2), dtype=np.float32))}


class Adder(Backend):
    """OUT is the sum of a sequence's inputs, in `seconds` of Trio's clock. A request called `<n>x…` of an iterative
    sequence takes n rounds; one called `bad…` fails."""

    seconds = 0.0
    batches: list[list[str]]
    inputs: list[list[Mapping[str, Any]]]
    made: list[Adder]
    cancelled: list[str]
    can_be_decoupled = True

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self.died = trio.Event()
        self.rounds: dict[str, int] = {}
        type(self).made.append(self)

    async def load(self) -> None:
        await trio.lowlevel.checkpoint()

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        self._note(requests)
        await trio.sleep(self.seconds)
        if self.died.is_set():
            raise InstanceDied("the worker has died")
        return BatchResult([self._answer(request) for request in requests], TIMING)

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        self._note(requests)
        for request, responder in zip(requests, responders, strict=True):
            answer = self._answer(request)
            if isinstance(answer, InferenceResponse):
                await responder.send(answer)
            elif isinstance(answer, Rescheduled):
                await responder.send(InferenceResponse("m", 1, [], id="between", is_final=False))
                responder.close(answer)
            else:
                responder.close(answer)
        await trio.sleep(self.seconds)
        return TIMING

    def _note(self, requests: Sequence[InferenceRequest]) -> None:
        type(self).batches.append([request.id for request in requests])
        type(self).inputs.append([{each.name: each.as_numpy() for each in request.inputs} for request in requests])

    def _answer(self, request: InferenceRequest) -> InferenceResponse | ServerError:
        if request.id.startswith("bad"):
            return InvalidArgument("bad")
        inputs = {each.name: each.as_numpy() for each in request.inputs}
        total = inputs["IN"] + inputs.get("SUM_IN", np.zeros((1, 2), dtype=np.float32))
        rounds, is_iterative, _ = request.id.partition("x")
        self.rounds[request.id] = self.rounds.get(request.id, 0) + 1
        if is_iterative and self.rounds[request.id] < int(rounds):
            return Rescheduled([Tensor.from_numpy("SUM_OUT", total)])
        outputs = [Tensor.from_numpy("OUT", total), Tensor.from_numpy("SUM_OUT", total)]
        return InferenceResponse("m", 1, outputs[: 2 if "SUM_IN" in inputs else 1], id=request.id)

    def cancel(self, request: InferenceRequest) -> None:
        self.cancelled.append(request.id)

    async def wait_died(self) -> None:
        await self.died.wait()


def adder(*, seconds: float = 0.0) -> type[Adder]:
    return type("TestAdder", (Adder,), {"seconds": seconds, "batches": [], "inputs": [], "made": [], "cancelled": []})


def batcher(of: ModelConfig) -> SequenceBatcher:
    return sequence_batcher(of, VersionStatistics(), ZERO)


async def start(
    nursery: trio.Nursery, of: ModelConfig, backend: type[Adder], *, instances: int = 1
) -> tuple[SequenceBatcher, SchedulerAddress]:
    actor = batcher(of)
    address: SchedulerAddress = await nursery.start(actor.run)
    iterative = of.sequence_batching is not None and of.sequence_batching.iterative_sequence
    for number in range(instances):
        instance = ModelInstance(
            f"m_{number}", backend(spec(of, name=f"m_{number}")), address, of.is_decoupled, is_iterative=iterative
        )
        await nursery.start(instance.run)
    return actor, address


async def submit(address: SchedulerAddress, *callers: Caller) -> None:
    for caller in callers:
        caller.item.arrival = trio.current_time()
        address.send_nowait(Submit(caller.item))
    await wait_all_tasks_blocked()


async def abandon(address: SchedulerAddress, caller: Caller) -> None:
    caller.item.is_cancelled = True
    address.send_nowait(Abandon(caller.item))
    await wait_all_tasks_blocked()


def total(caller: Caller) -> float:
    answer = caller.answer()
    assert isinstance(answer, InferenceResponse), answer
    assert [each.name for each in answer.outputs] == ["OUT"]
    return float(answer.outputs[0].as_numpy()[0, 0])


def error(caller: Caller, kind: type[ServerError]) -> str:
    answer = caller.answer()
    assert type(answer) is kind
    return answer.message


ITERATIVE = config(max_batch_size=2, oldest=StrategyOldest(max_candidate_sequences=2), state=(SUM,), iterative=True)


@pytest.mark.parametrize("oldest", [None, StrategyOldest(max_candidate_sequences=4)], ids=["direct", "oldest"])
async def test_the_server_keeps_the_state_of_each_sequence(
    autojump_clock: MockClock, nursery: trio.Nursery, oldest: StrategyOldest | None
) -> None:
    backend = adder(seconds=0.1)
    actor, address = await start(nursery, config(oldest=oldest, state=(SUM,)), backend)
    one = [Caller(1, start=START, value=1), Caller(1, value=2), Caller(1, end=END, value=3)]
    two = [Caller("two", start=START, value=10), Caller("two", value=20)]
    await submit(address, *one, *two)
    await trio.sleep(1)
    assert [total(caller) for caller in one] == [1, 3, 6]
    assert [total(caller) for caller in two] == [10, 30]
    assert [len(batch) for batch in backend.batches] == [2, 2, 1]
    again = Caller("two", start=START, value=5)
    await submit(address, again)
    await trio.sleep(0.2)
    assert total(again) == 5
    assert actor.statistics.inference_count == 6
    assert actor.statistics.execution_count == 4
    assert actor.pending_count == 0


async def test_a_step_that_fails_leaves_the_state_as_it_was(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    actor, address = await start(nursery, config(state=(SUM,)), adder())
    callers = [Caller(start=START, value=1), Caller(value=2, id="bad"), Caller(value=4)]
    await submit(address, *callers)
    assert total(callers[0]) == 1
    assert error(callers[1], InvalidArgument) == "bad"
    assert total(callers[2]) == 5
    assert actor.statistics.failures[FailureReason.BACKEND] == 1


async def test_rows_without_a_request_are_run_and_answered_to_nobody(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = adder()
    actor, address = await start(nursery, config(control_input=(READY,), state=(SUM,)), backend)
    await submit(address, *(Caller(number, start=START, value=number) for number in (1, 2, 3)))
    third = Caller(3, value=10)
    await submit(address, third)
    assert total(third) == 13
    ready = [bool(inputs["READY"][0, 0]) for inputs in backend.inputs[1]]
    assert ready == [False, False, True]
    assert actor.statistics.inference_count == 4
    first = Caller(1, value=10)
    await submit(address, first)
    assert total(first) == 11  # what ran in its row without it has not changed its state


@pytest.mark.parametrize("who_goes", ["gone", "gone and stays"])
async def test_a_caller_that_goes_after_handing_over_keeps_its_row(
    autojump_clock: MockClock, nursery: trio.Nursery, who_goes: str
) -> None:
    """Else the rows behind it would move up, into the state of others. The backend is told once it has the batch."""
    backend = adder(seconds=1)
    to_inbox, inbox = trio.open_memory_channel[SchedulerMessage](9)
    await nursery.start(
        ModelInstance(
            "m_0", backend(spec(config())), SchedulerAddress(to_inbox.send_nowait, lambda item: None, lambda: None)
        ).run
    )
    ready = await inbox.receive()
    assert isinstance(ready, InstanceReady)
    gone, stays = Caller(1, id="gone"), Caller(2, id="stays")
    ready.instance.inbox.send_nowait(Execute([gone.item, stays.item], keeps_rows=True))
    for caller in (gone, stays):
        if caller.item.request.id in who_goes:
            caller.item.cancel()
    await wait_all_tasks_blocked()
    assert sorted(set(backend.cancelled)) == sorted(who_goes.split(" and "))
    done = await inbox.receive()
    assert isinstance(done, BatchDone)
    assert backend.batches == [["gone", "stays"]]
    assert done.batch == [gone.item, stays.item]
    ready.instance.inbox.close()


class Given:
    """The inbox of an instance that keeps its batches, or ends each within the call."""

    def __init__(self, name: str, address: SchedulerAddress, *, computes: bool) -> None:
        self.instance = InstanceAddress(name, self)
        self.messages: list[Execute] = []
        self._scheduler = address
        self._computes = computes

    def send_nowait(self, message: Execute) -> None:
        self.messages.append(message)
        if self._computes:
            answers = [InferenceResponse("m", 1, [], item.request.id) for item in message.batch]
            self._scheduler.send_nowait(BatchDone(self.instance, message, message.batch, answers, 0.0, TIMING))

    def close(self) -> None: ...


async def test_a_batch_that_ends_within_the_call_that_gives_it_brings_nobody_two(nursery: trio.Nursery) -> None:
    """The instance that gets its batch by that end is not given another one behind it."""
    actor = batcher(config(max_batch_size=1, oldest=StrategyOldest(max_candidate_sequences=4)))
    address: SchedulerAddress = await nursery.start(actor.run)
    computes, keeps = Given("m_0", address, computes=True), Given("m_1", address, computes=False)
    for each in (computes, keeps):
        address.send_nowait(InstanceReady(each.instance))
    callers = [Caller(number, start=START, end=END, id=str(number)) for number in range(1, 9)]
    await submit(address, *callers)
    assert (len(computes.messages), len(keeps.messages)) == (4, 1)
    answers = [caller.answer() for caller in callers]
    assert (sum(isinstance(answer, InferenceResponse) for answer in answers), answers.count(None)) == (4, 4)
    nursery.cancel_scope.cancel()


async def test_utilization_waits_no_longer_than_the_delay(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    backend = adder()
    direct = StrategyDirect(max_queue_delay_microseconds=1_000_000, minimum_slot_utilization=0.75)
    _, address = await start(nursery, config(direct=direct), backend)
    await submit(address, Caller(1, start=START, id="1"), Caller(2, start=START, id="2"))
    await trio.sleep(0.9)
    assert backend.batches == []
    await trio.sleep(0.2)
    assert backend.batches == [["1", "2"]]
    await submit(address, *(Caller(number, start=number == 3, id=str(number)) for number in (1, 2, 3)))
    assert backend.batches[1:] == [["1", "2", "3"]]


async def test_what_is_refused_is_answered_and_not_counted(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    actor, address = await start(nursery, config(), adder())
    caller = Caller(5)
    await submit(address, caller)
    assert "must specify the START flag" in error(caller, InvalidArgument)
    assert sum(actor.statistics.failures.values()) == 0


async def test_an_idle_sequence_makes_room_for_the_backlog(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    actor, address = await start(nursery, config(max_batch_size=1), adder())
    one, two = Caller(1, start=START), Caller(2, start=START, value=7)
    await submit(address, one, two)
    assert total(one) == 0
    assert two.answer() is None
    assert actor.pending_count == 1
    began = trio.current_time()
    answer = await two.answers.receive()
    assert isinstance(answer, InferenceResponse)
    assert trio.current_time() - began == pytest.approx(1.0)


async def test_a_timeout_in_the_backlog_is_unavailable_and_counted_as_rejected(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    actor, address = await start(nursery, config(max_batch_size=1), adder(seconds=10))
    waits = [Caller(2, start=START, timeout_us=500_000), Caller(2)]
    await submit(address, Caller(1, start=START), *waits)
    await trio.sleep(0.6)
    for caller in waits:
        assert error(caller, Unavailable) == "timeout of the corresponding sequence has been expired"
    assert actor.statistics.failures[FailureReason.REJECTED] == 2


async def test_a_client_that_vanishes_frees_its_slot_at_once(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Its requests that wait are answered as cancelled, and the backlog runs with the next batch."""
    backend = adder(seconds=1)
    actor, address = await start(nursery, config(max_batch_size=1, idle_us=60_000_000), backend)
    runs, waits = Caller(1, start=START, id="runs"), Caller(1, id="waits")
    other = Caller(2, start=START, id="other")
    await submit(address, runs, waits, other)
    await abandon(address, runs)
    assert error(waits, Cancelled) == "an earlier request of the sequence was cancelled"
    await trio.sleep(2.1)
    assert total(other) == 0
    assert backend.batches == [["runs"], ["other"]]
    assert actor.statistics.failures[FailureReason.CANCELED] == 2
    late = Caller(1)
    await submit(address, late)
    assert "must specify the START flag" in error(late, InvalidArgument)


async def test_a_batch_whose_clients_have_all_vanished_is_told_also_of_rows_for_nobody(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Row 0 has no request in the second batch."""
    backend = adder(seconds=1)
    _, address = await start(nursery, config(), backend)
    first, gone, last = (Caller(id, start=START, id=name) for id, name in ((1, ""), (2, "gone"), (3, "last")))
    await submit(address, first)
    await submit(address, gone, last)
    await trio.sleep(1.5)
    assert backend.batches[-1] == ["", "gone", "last"]
    assert backend.cancelled == []
    gone.item.cancel()
    assert backend.cancelled == ["gone"]
    last.item.cancel()
    assert backend.cancelled == ["gone", "", "gone", "last"]


async def test_an_abandoned_iterative_request_ends_with_its_round(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = adder(seconds=1)
    _, address = await start(nursery, ITERATIVE, backend)
    gone = Caller(id="9x")
    await submit(address, gone)
    await abandon(address, gone)
    await trio.sleep(3)
    assert backend.batches == [["9x"]]


async def test_new_requests_join_the_rounds_of_those_that_run(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Continuous batching: nobody waits for another's last round but for want of a slot."""
    backend = adder(seconds=1)
    actor, address = await start(nursery, ITERATIVE, backend)
    one, two, three = Caller(id="3x1", value=1), Caller(id="2x2", value=10), Caller(id="1x3", value=100)
    await submit(address, one)
    await submit(address, two, three)
    await trio.sleep(4.5)
    assert [sorted(batch) for batch in backend.batches] == [["3x1"], ["2x2", "3x1"], ["2x2", "3x1"], ["1x3"]]
    assert [total(one), total(two), total(three)] == [3, 20, 100]
    statistics = actor.statistics.frozen("m", 1)
    assert (statistics.inference_count, statistics.execution_count) == (3, 4)
    assert statistics.inference_stats.success.count == 3
    assert statistics.inference_stats.queue.ns == pytest.approx((0 + 1 + 3) * 1e9)
    assert statistics.inference_stats.compute_infer.count == 6


async def test_only_an_iterative_model_can_reschedule(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    _, address = await start(nursery, config(state=(SUM,)), adder())
    caller = Caller(start=START, id="2x")
    await submit(address, caller)
    assert error(caller, Rescheduled) == (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )


async def test_oldest_can_preserve_the_order_of_replies(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """The second instance is done first; its replies leave after the first's. An abandoned request holds nobody up."""
    oldest = StrategyOldest(max_candidate_sequences=1, preserve_ordering=True)
    backend = adder(seconds=2)
    _, address = await start(nursery, config(max_batch_size=1, oldest=oldest), backend, instances=2)
    backend.made[1].seconds = 1
    slow, quick, more = Caller(1, start=START), Caller(2, start=START), Caller(2)
    await submit(address, slow, quick, more)
    await trio.sleep(1.5)
    assert (slow.answer(), quick.answer()) == (None, None)
    await abandon(address, slow)
    assert total(quick) == 0
    await trio.sleep(1)
    assert total(more) == 0


async def test_a_lost_instance_ends_its_sequences_and_the_others_go_on(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = adder(seconds=1)
    actor, address = await start(nursery, config(max_batch_size=1), backend, instances=2)
    runs, waits = Caller(1, start=START), Caller(1)
    other, backlog = Caller(2, start=START, end=END), Caller(3, start=START)
    await submit(address, runs, waits, other, backlog)
    backend.made[0].died.set()
    await trio.sleep(2.5)
    assert error(runs, InstanceDied) == "the worker has died"
    assert error(waits, Unavailable) == "model instance 'm_0' has died, and with it the sequences that it had"
    assert total(other) == 0
    assert total(backlog) == 0
    assert actor.live_count == 1
    backend.made[1].died.set()
    await wait_all_tasks_blocked()
    late = Caller(4, start=START)
    await submit(address, late)
    assert "all of its instances have stopped" in error(late, Unavailable)


async def test_an_iterative_request_dies_with_its_instance(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """The model has ended its round, but its process is gone before the next."""
    backend = adder(seconds=1)
    _, address = await start(nursery, ITERATIVE, backend)
    caller = Caller(id="3x")
    await submit(address, caller)
    await trio.sleep(1.5)
    backend.made[0].died.set()
    await trio.sleep(1)
    assert isinstance(caller.answer(), Unavailable)


async def test_draining_lets_a_sequence_go_on_while_something_runs(autojump_clock: MockClock) -> None:
    """New sequences are refused, requests of live ones are not; nobody waits for requests that may never come."""
    async with trio.open_nursery() as nursery:
        _, address = await start(nursery, config(state=(SUM,), idle_us=60_000_000), adder(seconds=1))
        first, more, new = Caller(1, start=START, value=1), Caller(1, value=2), Caller(2, start=START)
        await submit(address, first)
        address.send_nowait(Drain())
        await submit(address, more)
        with pytest.raises(StoppedAccepting, match="has stopped accepting new inference requests"):
            address.send_nowait(Submit(new.item))
    assert [total(first), total(more)] == [1, 3]
    assert trio.current_time() < 10


async def test_stopped_now_it_fails_all_that_it_holds(autojump_clock: MockClock) -> None:
    runs, waits, backlog = Caller(1, start=START), Caller(1), Caller(2, start=START)
    async with trio.open_nursery() as nursery:
        _, address = await start(nursery, config(max_batch_size=1), adder(seconds=10))
        await submit(address, runs, waits, backlog)
        nursery.cancel_scope.cancel()
    assert isinstance(runs.answer(), Unavailable)
    for caller in (waits, backlog):
        assert error(caller, Unavailable) == "model 'm' was stopped before the request was finished"


DECOUPLED = ModelTransactionPolicy(decoupled=True)


async def collect(caller: Caller) -> list[str]:
    return [answer.id if isinstance(answer, InferenceResponse) else answer.message async for answer in caller.answers]


async def test_a_decoupled_model_has_sequences_too(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    backend = adder(seconds=1)
    of = msgspec.structs.replace(config(control_input=(READY,)), model_transaction_policy=DECOUPLED)
    actor, address = await start(nursery, of, backend)
    one, two = Caller(1, start=START, id="one", buffered=9), Caller(2, start=START, id="two", buffered=9)
    more = Caller(2, id="more", buffered=9)
    await submit(address, one, two, more)
    assert await collect(one) == ["one"]
    assert await collect(more) == ["more"]
    await trio.sleep(2)
    assert [len(batch) for batch in backend.batches] == [2, 2]
    assert actor.statistics.frozen("m", 1).inference_stats.success.count == 3
    address.send_nowait(Drain())


async def test_a_decoupled_iterative_request_answers_in_every_round(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = adder(seconds=1)
    of = msgspec.structs.replace(config(max_batch_size=2, iterative=True), model_transaction_policy=DECOUPLED)
    actor, address = await start(nursery, of, backend)
    one, gone = Caller(id="3x", buffered=9), Caller(id="9x", buffered=9)
    await submit(address, one, gone)
    await trio.sleep(1.5)
    await abandon(address, gone)
    assert await collect(one) == ["between", "between", "3x"]
    await trio.sleep(2)
    assert backend.batches == [["3x", "9x"], ["3x", "9x"], ["3x"]]
    statistics = actor.statistics.frozen("m", 1)
    assert statistics.inference_stats.success.count == 1
    assert statistics.inference_stats.queue.ns == 0
    assert (statistics.inference_count, statistics.execution_count) == (1, 3)
    address.send_nowait(Drain())  # and nothing is left that would hold it up


async def test_a_decoupled_iterative_request_that_waits_for_its_next_round_is_failed_with_its_instance(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    oldest = StrategyOldest(
        max_candidate_sequences=2, preferred_batch_size=(2,), max_queue_delay_microseconds=9_000_000
    )
    of = msgspec.structs.replace(
        config(max_batch_size=2, iterative=True, oldest=oldest), model_transaction_policy=DECOUPLED
    )
    backend = adder(seconds=1)
    _, address = await start(nursery, of, backend)
    one, two = Caller(id="3x", buffered=9), Caller(id="1x", buffered=9)
    await submit(address, one, two)
    await trio.sleep(1.5)
    assert await collect(two) == ["1x"]
    backend.made[0].died.set()
    assert await collect(one) == ["between"]
    assert isinstance(one.item.failure, Unavailable)
    assert not isinstance(one.item.failure, Internal)
    address.send_nowait(Drain())
