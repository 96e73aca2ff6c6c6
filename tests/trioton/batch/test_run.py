"""A run on rows and results in memory: what is written, in which order, and what the state tells when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.errors import InvalidArgument, Unavailable
from protocol.jobs.rows import ResultRow
from protocol.jobs.source import Position
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from trioton.batch.attempts import Attempts, ModelUnavailable, RequestRow
from trioton.batch.caution import MOST_CRASHES_ALONE, Caution
from trioton.batch.run import Run
from trioton.batch.state import Ends, Identity, State
from trioton.batch.window import Window
from trioton.in_process import Models

IDENTITY = Identity("", "", "", "m", -1, "", None)


class MemoryRows:
    def __init__(self, rows: range, fails_at: int | None = None) -> None:
        self._left = list(rows)
        self._count = len(rows)
        self._fails_at = fails_at

    def read(self) -> Sequence[RequestRow]:
        taken, self._left = self._left[:7], self._left[7:]
        if self._fails_at is not None and self._fails_at in taken:
            raise Unavailable("the bucket has gone")
        return [RequestRow(row, f"c{row}", InferenceRequest("m", [], id=str(row)), Position(row + 1)) for row in taken]

    def fraction(self) -> float:
        return 1 - len(self._left) / self._count


class MemoryResults:
    checkpoint_seconds = 0.0
    is_full = False

    def __init__(self, fails_at: int | None = None) -> None:
        self.rows: list[ResultRow] = []
        self.durable = 0
        self._fails_at = fails_at

    @property
    def failures(self) -> int:
        return sum(row.error is not None for row in self.rows)

    def write(self, results: Sequence[ResultRow]) -> None:
        for row in results:
            if row.index == self._fails_at:
                raise OSError(28, "No space left on device")
            self.rows.append(row)

    def checkpoint(self) -> Ends:
        self.durable = len(self.rows)
        return Ends(self.durable)


class MemoryStates:
    """Each state must tell of what is durable, and of all rows that have begun."""

    def __init__(self, results: MemoryResults, models: FakeModels) -> None:
        self.states: list[State] = []
        self._results = results
        self._models = models

    def write(self, state: State) -> None:
        assert state.ends.results <= self._results.durable
        if self.states and self.states[-1].is_running:
            assert self._models.begun <= self.states[-1].caution.begun
        self.states.append(state)

    @property
    def last(self) -> State:
        return self.states[-1]


class FakeModels:
    """Answers each row once `let_go` has been set for it, and raises where it is told to."""

    def __init__(self, raised: Callable[[int], Exception | None] = lambda row: None) -> None:
        self.begun = 0
        self.most = 0
        self.running = 0
        self.gate = trio.Event()
        self.gate.set()
        self._raised = raised

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        row = int(request.id)
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            for _ in range(row % 5):  # rows overtake each other
                await trio.lowlevel.checkpoint()
        finally:
            self.running -= 1
        if (error := self._raised(row)) is not None:
            raise error
        return InferenceResponse("m", 1, [Tensor.from_numpy("Y", np.array([row]))])


class Made:
    """A run and what it works on."""

    def __init__(
        self,
        rows: MemoryRows,
        *,
        models: FakeModels | None = None,
        results: MemoryResults | None = None,
        state: State = State(IDENTITY),  # noqa: B008 (frozen)
        patience: float = 0.0,
    ) -> None:
        self.models = models or FakeModels()
        self.results = results or MemoryResults()
        self.states = MemoryStates(self.results, self.models)
        attempts = Attempts(cast(Models, self.models), is_decoupled=False, patience=patience)
        window = Window(8, 1 << 20, state.position)
        self.run = Run(rows, self.results, self.states, attempts, state, in_flight=4, window=window)

    @property
    def written(self) -> list[int]:
        return [row.index for row in self.results.rows]


async def test_all_rows_are_written_in_order() -> None:
    made = Made(MemoryRows(range(100)))
    state = await made.run.run()
    assert made.written == list(range(100))
    assert made.models.most == 4
    assert state == made.states.last
    assert (state.done, state.failed, state.position) == (100, 0, Position(100))
    assert (state.is_complete, state.is_running) == (True, False)
    assert all(one.is_running for one in made.states.states[:-1])


async def test_an_empty_input_is_complete() -> None:
    state = await Made(MemoryRows(range(0))).run.run()
    assert (state.done, state.is_complete) == (0, True)


async def test_failures_are_counted() -> None:
    made = Made(MemoryRows(range(50)), models=FakeModels(lambda row: InvalidArgument("no") if row % 10 == 0 else None))
    state = await made.run.run()
    assert (state.done, state.failed, made.written) == (50, 5, list(range(50)))


async def test_it_goes_on_from_a_state() -> None:
    began = State(IDENTITY, Position(30), Ends(0), done=30, failed=2, seconds=5.0)
    made = Made(MemoryRows(range(30, 50)), state=began)
    state = await made.run.run()
    assert (state.done, state.failed, state.position) == (50, 2, Position(50))
    assert state.seconds >= 5.0


async def test_stopped_it_waits_for_what_runs_and_leaves_the_rest(nursery: trio.Nursery) -> None:
    made = Made(MemoryRows(range(100)))
    made.models.gate = trio.Event()
    ended = trio.Event()
    states: list[State] = []

    async def run() -> None:
        states.append(await made.run.run())
        ended.set()

    nursery.start_soon(run)
    while made.models.running < 4:
        await wait_all_tasks_blocked()
    made.run.stop()
    made.models.gate.set()
    await ended.wait()
    assert made.written == [0, 1, 2, 3]
    assert (states[0].done, states[0].is_complete, states[0].is_running) == (4, False, False)


async def test_what_hangs_is_given_up_when_it_is_stopped(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioton.batch.run.LEAVE_SECONDS", 0.0)
    made = Made(MemoryRows(range(100)))
    made.models.gate = trio.Event()
    ended = trio.Event()

    async def run() -> None:
        await made.run.run()
        ended.set()

    nursery.start_soon(run)
    while made.models.running < 4:
        await wait_all_tasks_blocked()
    made.run.stop()
    await ended.wait()
    assert (made.states.last.done, made.states.last.is_running) == (0, False)


async def test_an_output_that_cannot_be_written_ends_it() -> None:
    """What was durable before stays, and the next start is not told of a crash."""
    made = Made(MemoryRows(range(100)), results=MemoryResults(fails_at=40))
    with pytest.raises(OSError, match="No space left"):
        await made.run.run()
    assert made.states.last.done <= 40
    assert made.states.last.ends.results == made.states.last.done
    assert not made.states.last.is_running


async def test_an_input_that_cannot_be_read_ends_it() -> None:
    made = Made(MemoryRows(range(100), fails_at=50))
    with pytest.raises(Unavailable, match="the bucket has gone"):
        await made.run.run()
    assert made.states.last.done == len(made.written) > 0
    assert not made.states.last.is_running


async def test_a_model_that_is_gone_ends_it() -> None:
    made = Made(MemoryRows(range(100)), models=FakeModels(lambda row: Unavailable("gone")))
    with pytest.raises(ModelUnavailable, match="gone"):
        await made.run.run()
    assert (made.states.last.done, made.states.last.is_running) == (0, False)


async def test_after_crashes_rows_run_alone_until_the_suspects_are_past() -> None:
    caution = Caution(begun=10, crashes=3, until=10)
    made = Made(MemoryRows(range(4, 30)), state=State(IDENTITY, Position(4), done=4, caution=caution))
    seen: list[int] = []
    infer = made.models.infer

    async def counted(request: InferenceRequest) -> InferenceResponse:
        seen.append(made.models.running)
        return await infer(request)

    made.models.infer = counted  # type: ignore[method-assign]
    state = await made.run.run()
    assert made.written == list(range(4, 30))
    assert seen[:6] == [0] * 6
    assert state.caution.crashes == 0


async def test_a_row_that_is_to_blame_is_not_run() -> None:
    caution = Caution(begun=5, crashes=6, until=10, crashes_alone=MOST_CRASHES_ALONE)
    ran: list[int] = []
    models = FakeModels(lambda row: ran.append(row))
    made = Made(MemoryRows(range(4, 12)), models=models, state=State(IDENTITY, Position(4), done=4, caution=caution))
    state = await made.run.run()
    assert ran == list(range(5, 12))
    assert (state.done, state.failed) == (12, 1)
    error = made.results.rows[0].error
    assert error is not None
    assert "while it ran this row alone" in error.message


async def test_progress() -> None:
    made = Made(MemoryRows(range(21)))
    before = made.run.progress()
    assert (before.done, before.total) == (0, 0)
    await made.run.run()
    after = made.run.progress()
    assert (after.done, after.total, after.running, after.is_exact) == (21, 21, 0, True)
