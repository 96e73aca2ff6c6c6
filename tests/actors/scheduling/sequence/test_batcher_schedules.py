"""The sequence batcher, its instances and its states in random schedules under virtual time: plain, decoupled and
iterative models that add up what a sequence sends; callers that send ahead, vanish and begin anew; slow, failing and
dying backends.

`TRIOTON_RANDOM_SCHEDULES` sets how many are tried.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import trio
from msgspec.structs import replace

from actors.model.model import Model
from backends.interface import (
    STARTED,
    Backend,
    BatchResult,
    BatchTiming,
    HeldTensor,
    InstanceDied,
    InstanceSpec,
    Rescheduled,
    Responder,
    Started,
)
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelTransactionPolicy, SequenceState, StrategyDirect, StrategyOldest
from tests.actors.fakes import TIMING, FakeBackendOfTasks, spec, tensor
from tests.actors.random_schedules import MOST_SECONDS, run_schedules, schedule_count
from tests.actors.scheduling.sequence.sequences import config

SCHEDULES = schedule_count(100)
SUM = SequenceState("SUM_IN", "SUM_OUT", DataType.FP32, (2,))
ZERO = {"SUM_IN": Tensor.from_numpy("SUM_IN", np.zeros((1, 2), dtype=np.float32))}


@dataclass(slots=True)
class Call:
    """One request and its fate. `plan` is what the model does with it: how many responses in each of its rounds, and
    None for a last round that fails."""

    id: str
    value: float
    plan: list[int | None]
    got: list[float] = field(default_factory=list)
    outcome: str = ""


class Schedule:
    """One model, its callers and its troubles, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.is_decoupled = rng.random() < 0.5
        self.is_iterative = rng.random() < 0.3
        self.can_die = rng.random() < 0.2
        self.is_holding = rng.random() < 0.5  # its instances keep their states themselves
        self.begins = rng.random() < 0.5  # its backend begins batches by a call
        self.overlaps = rng.random() < 0.5  # and takes others meanwhile
        self.most_at_once = 0
        self.clashes: list[tuple[list[str], list[str]]] = []
        self.plans: dict[str, list[int | None]] = {}
        self.rounds: Counter[str] = Counter()
        self.lives: list[list[Call]] = []  # each from a START on
        self.is_direct = is_direct = rng.random() < 0.5
        self.config = replace(
            config(
                max_batch_size=rng.choice([0, 1, 3]) if is_direct else rng.choice([1, 3]),
                direct=StrategyDirect(
                    max_queue_delay_microseconds=rng.choice([0, 300_000]),
                    minimum_slot_utilization=rng.choice([0.0, 0.6]),
                )
                if is_direct
                else None,
                oldest=None
                if is_direct
                else StrategyOldest(
                    max_candidate_sequences=rng.choice([0, 1, 4]),
                    max_queue_delay_microseconds=rng.choice([0, 300_000]),
                    preserve_ordering=rng.random() < 0.3,
                ),
                state=(SUM,),
                iterative=self.is_iterative,
                idle_us=rng.choice([700_000, 20_000_000]),
            ),
            model_transaction_policy=ModelTransactionPolicy(decoupled=self.is_decoupled),
        )
        specs = [spec(self.config, name=f"m_{number}") for number in range(rng.randint(1, 2))]
        initial = ZERO
        if not self.config.is_batching:
            initial = {"SUM_IN": Tensor.from_numpy("SUM_IN", np.zeros(2, dtype=np.float32))}
        self.model = Model(self.config, 1, self.backend(), specs, initial_states=initial)

    def backend(self) -> type[Backend]:
        schedule = self

        class Summing(FakeBackendOfTasks):
            """Adds IN to the sum of its sequence as often as it answers."""

            made = []  # noqa: RUF012 (of this class alone)
            can_be_decoupled = True
            can_overlap = schedule.overlaps

            def __init__(self, spec: InstanceSpec) -> None:
                super().__init__(spec)
                self.running: list[Sequence[InferenceRequest]] = []

            def begin(
                self,
                requests: Sequence[InferenceRequest],
                done: Callable[[BatchResult | Exception], None],
                free: Callable[[], None] | None = None,
            ) -> BatchResult | Started | None:
                """A batch is left alone, begun, or computed."""
                if not schedule.begins or schedule.rng.random() < 0.2:
                    return None
                if schedule.rng.random() < 0.5:
                    return self.compute(requests)
                assert self.tasks is not None
                self.tasks.start_soon(self.end_later, requests, done, free)
                return STARTED

            async def end_later(
                self,
                requests: Sequence[InferenceRequest],
                done: Callable[[BatchResult | Exception], None],
                free: Callable[[], None] | None,
            ) -> None:
                result: BatchResult | Exception = InstanceDied("the worker has died")
                try:
                    result = await self.executed(requests, free)
                except InstanceDied as died:
                    result = died
                finally:
                    done(result)

            async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
                return await self.executed(requests, None)

            async def execute_overlapping(
                self, requests: Sequence[InferenceRequest], free: Callable[[], None]
            ) -> BatchResult:
                return await self.executed(requests, free)

            async def executed(
                self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None
            ) -> BatchResult:
                with self.beside_others(requests):
                    await self.take_time([0.0, 0.1, 1.0], free)
                    return self.compute(requests)

            async def take_time(self, seconds: list[float], free: Callable[[], None] | None) -> None:
                """Meanwhile, perhaps, let another batch come."""
                if free is not None and schedule.rng.random() < 0.8:
                    await trio.sleep(schedule.rng.choice([0.0, 0.05]))
                    free()
                await trio.sleep(schedule.rng.choice(seconds))
                if self.died.is_set():
                    raise InstanceDied("the worker has died")

            @contextmanager
            def beside_others(self, requests: Sequence[InferenceRequest]) -> Iterator[None]:
                """No two batches at once have steps of one sequence, or one row."""
                for others in self.running:
                    ids = {each.sequence_id for each in others if each.id}
                    same_id = any(each.id and each.sequence_id in ids for each in requests)
                    same_row = any(one.id and other.id for one, other in zip(others, requests, strict=False))
                    if same_id or (schedule.is_direct and same_row):
                        schedule.clashes.append(([each.id for each in others], [each.id for each in requests]))
                self.running.append(requests)
                schedule.most_at_once = max(schedule.most_at_once, len(self.running))
                try:
                    yield
                finally:
                    self.running.remove(requests)

            def compute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
                if schedule.can_die and schedule.rng.random() < 0.05:
                    raise self.die()
                return BatchResult([self.answer(request) for request in requests], TIMING)

            def answer(self, request: InferenceRequest) -> InferenceResponse | ServerError:
                if not request.id:  # a row without a request
                    return response(request, 0.0)
                planned, is_last = schedule.next_round(request)
                total = self.state(request) + request.inputs[0].as_numpy().flat[0]
                if planned is None:
                    return InvalidArgument("planned to fail")
                found = self.response(request, total)
                return found if is_last else Rescheduled(found.outputs[1:])

            def state(self, request: InferenceRequest) -> float:
                state = request.inputs[1]
                if not isinstance(state, HeldTensor):
                    return float(state.as_numpy().flat[0])
                assert not state.data
                holder, value = state.held
                assert holder is self, "the state of another instance"
                return float(value)

            def response(self, request: InferenceRequest, total: float) -> InferenceResponse:
                found = response(request, total)
                if schedule.is_holding:
                    out = found.outputs[1]
                    found.outputs[1] = HeldTensor(out.name, out.datatype, out.shape, out.data, (self, total))
                return found

            async def execute_decoupled(
                self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
            ) -> BatchTiming:
                return await self.streamed(requests, responders, None)

            async def execute_decoupled_overlapping(
                self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], free: Callable[[], None]
            ) -> BatchTiming:
                return await self.streamed(requests, responders, free)

            async def streamed(
                self,
                requests: Sequence[InferenceRequest],
                responders: Sequence[Responder],
                free: Callable[[], None] | None,
            ) -> BatchTiming:
                assert self.tasks is not None
                with self.beside_others(requests):
                    for request, responder in zip(requests, responders, strict=True):
                        if not request.id:
                            responder.close()
                        elif schedule.is_iterative:  # a round ends before its batch does
                            await self.stream(request, responder)
                        else:
                            self.tasks.start_soon(self.stream, request, responder)
                    await self.take_time([0.0, 0.1], free)
                    if schedule.can_die and schedule.rng.random() < 0.05:
                        raise self.die()
                return TIMING

            async def stream(self, request: InferenceRequest, responder: Responder) -> None:
                planned, is_last = schedule.next_round(request)
                total = self.state(request)
                for _ in range(1 if planned is None else planned):
                    await trio.sleep(schedule.rng.choice([0.0, 0.1, 0.5]))
                    total += request.inputs[0].as_numpy().flat[0]
                    await responder.send(self.response(request, total))
                error = None if is_last else Rescheduled()
                responder.close(InvalidArgument("planned to fail") if planned is None else error)

        return Summing

    def next_round(self, request: InferenceRequest) -> tuple[int | None, bool]:
        """What the model does now with a request, and whether that is all."""
        plan = self.plans[request.id]
        self.rounds[request.id] += 1
        assert self.rounds[request.id] <= len(plan), "ran too often"
        return plan[self.rounds[request.id] - 1], self.rounds[request.id] == len(plan)

    async def call(self, call: Call, sequence: int, patience: float, *, start: bool, end: bool) -> None:
        in_ = tensor(value=call.value)
        if not self.config.is_batching:
            in_ = Tensor(in_.name, in_.datatype, (2,), in_.data)
        asked = InferenceRequest("m", [in_], id=call.id, sequence_id=sequence, sequence_start=start, sequence_end=end)

        async def respond(response: InferenceResponse) -> None:
            assert response.id == call.id, "somebody else's answer"
            assert [each.name for each in response.outputs] == ["OUT"]
            call.got.append(float(response.outputs[0].as_numpy().flat[0]))

        with trio.move_on_after(patience) as waiting:
            try:
                await self.model.infer_stream(asked, respond)
                call.outcome = "answered"
            except ServerError as error:
                call.outcome = error.message
        if waiting.cancelled_caught:
            call.outcome = "gave up"

    async def client(self, sequence: int) -> None:
        """Lives of one correlation id, one after the other; some send ahead, some never say END."""
        rng = self.rng
        await trio.sleep(rng.choice([0.0, 0.3, 2.0]))
        async with trio.open_nursery() as calls:
            for _ in range(rng.randint(1, 3)):
                life: list[Call] = []
                self.lives.append(life)
                length = rng.randint(1, 5)
                sends_ahead = rng.random() < 0.4
                for number in range(length):
                    call = Call(f"{len(self.lives)}.{sequence}.{number}", float(rng.randint(1, 9)), self.plan())
                    self.plans[call.id] = call.plan
                    life.append(call)
                    patience = rng.choice([0.0, 0.2, 1.0]) if rng.random() < 0.1 else MOST_SECONDS
                    is_end = number == length - 1 and rng.random() < 0.7
                    if sends_ahead:
                        begins = trio.Event()
                        calls.start_soon(self.begin, begins, call, sequence, patience, number == 0, is_end)
                        await begins.wait()
                    else:
                        await self.call(call, sequence, patience, start=number == 0, end=is_end)
                    await trio.sleep(rng.choice([0.0, 0.0, 0.1]))

    async def begin(
        self, begins: trio.Event, call: Call, sequence: int, patience: float, start: bool, end: bool
    ) -> None:
        begins.set()  # what the client does next comes behind this
        await self.call(call, sequence, patience, start=start, end=end)

    def plan(self) -> list[int | None]:
        rounds = self.rng.randint(1, 4) if self.is_iterative else 1
        plan: list[int | None] = [self.rng.randint(0, 3) if self.is_decoupled else 1 for _ in range(rounds)]
        if self.rng.random() < 0.1:
            plan[-1] = None
        return plan

    async def run(self) -> None:
        with trio.fail_after(MOST_SECONDS):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.model.run)
                async with trio.open_nursery() as clients:
                    for sequence in range(1, self.rng.randint(2, 8)):
                        clients.start_soon(self.client, sequence)
                self.model.drain()

    def check(self) -> None:
        assert not self.clashes, "at once"
        calls = [call for life in self.lives for call in life]
        assert all(call.outcome for call in calls), "somebody was forgotten"
        for life in self.lives:
            self.check_life(life)
        assert self.model.pending_count == 0
        counted = self.model.statistics.frozen("m", 1).inference_stats
        answered = sum(call.outcome == "answered" for call in calls)
        gave_up = sum(call.outcome == "gave up" for call in calls)  # some just when their answer came
        assert answered <= counted.success.count <= answered + gave_up

    def check_life(self, life: Sequence[Call]) -> None:
        """Every sum is that of what its sequence had sent and got answers to."""
        if life[0].outcome == "gave up" and not self.is_iterative:
            return  # perhaps before it was sent: the others may belong to the life before
        sums = {0.0}  # what the state may be
        is_over = False
        for call in life:
            if self.is_iterative:
                sums, is_over = {0.0}, False
            if call.outcome in ("answered", "planned to fail"):
                assert not is_over, f"{call} was answered, but its sequence was over"
                assert self.rounds[call.id] == len(call.plan)
            responses = sum(planned if planned is not None else int(self.is_decoupled) for planned in call.plan)
            steps = [responses] if not self.is_decoupled else range(1, len(call.got) + 1)
            expected = {tuple(sum_ + step * call.value for step in steps): sum_ for sum_ in sums}
            assert tuple(call.got) in expected or not call.got, f"{call}, after {sums}"
            if call.got:
                sums = {sum_ for got, sum_ in expected.items() if got == tuple(call.got)}
            if call.outcome == "answered":
                assert len(call.got) == (responses if self.is_decoupled else 1)
                sums = {sum_ + responses * call.value for sum_ in sums}
            elif call.outcome == "gave up":  # it may have been done
                sums |= {sum_ + responses * call.value for sum_ in sums if call.plan[-1] is not None}
            elif call.outcome != "planned to fail":
                is_over = True


def response(request: InferenceRequest, total: float) -> InferenceResponse:
    values = np.full(request.inputs[0].shape, total, dtype=np.float32)
    outputs = [Tensor.from_numpy(name, values) for name in ("OUT", "SUM_OUT")]
    return InferenceResponse("m", 1, outputs, request.id, is_final=False)


def test_in_random_schedules_every_sequence_keeps_its_state() -> None:
    most_at_once = 1

    async def check(seed: int) -> None:
        nonlocal most_at_once
        schedule = Schedule(seed)
        await schedule.run()
        schedule.check()
        most_at_once = max(most_at_once, schedule.most_at_once)

    run_schedules(SCHEDULES, check)
    assert most_at_once > 1, "of an instance"
