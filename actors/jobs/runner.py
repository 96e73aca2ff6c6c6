"""The runner of jobs: an actor that takes items from the store and runs them, beside the live requests.

Flow: edge → jobs → store → [runner] → executor → core … → [runner] → store. Started and owned by `actors.jobs.jobs`.
It claims a few items more than run, so that the store is never waited for. Each item that runs has a task, whose end is
an outcome in the store (`outcomes`): that is all that is known of it if the server ends. Beside live requests (`pace`)
items begin some at a time.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import trio

from actors.jobs.feed import Lane, retry_seconds
from actors.jobs.figures import RunnerFigures
from actors.jobs.followers import Followers
from actors.jobs.outcomes import Outcomes
from actors.jobs.pace import Pace
from protocol.errors import InsufficientStorage, Internal, ServerError, Unavailable, text_of
from protocol.failures import CallbackFailures
from protocol.jobs.execution import FailedItem, JobExecutor
from protocol.jobs.job import ItemError
from protocol.jobs.states import JobState
from protocol.jobs.store import Claim, JobStore, Outcome
from protocol.messages import InferenceResponse

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
# How often it is looked whether the live requests leave room again.
PAUSE_SECONDS = 0.01
# Between those that begin beside live requests, and the next ones.
REST_SECONDS = 0.001
# What runs when the server is told to end may end within this, before it is given back.
LEAVE_SECONDS = 1.0
# How long the store may take for that.
STORE_SECONDS = 5.0
# Of the requests of all items that run; one that is larger runs alone.
MAX_REQUEST_BYTES = 256 << 20
# Lanes of models without items, of names that clients have made up.
_MOST_LANES = 1024


@dataclass(slots=True, eq=False)
class _Running:
    """An item that runs. `end` is what it becomes where its scope is cancelled."""

    claim: Claim
    scope: trio.CancelScope
    end: JobState = JobState.EXPIRED


class JobRunner:
    """Of one server. Cancelled, what runs stays claimed, and the next start queues it again."""

    def __init__(
        self,
        store: JobStore,
        executor: JobExecutor,
        followers: Followers,
        failures: CallbackFailures,
        now: Callable[[], float],
        *,
        most_in_flight: int,
        executors: Mapping[str, JobExecutor] = {},
        pace: Pace | None = None,
    ) -> None:
        """`executors` run the items of jobs of other kinds."""
        self.figures = RunnerFigures()
        self._pace = pace or Pace()
        self._store = store
        self._executor = executor
        self._executors = executors
        self._followers = followers
        self._most = most_in_flight
        self._now = now
        self._failures = failures
        self._lanes: dict[str, Lane] = {}
        self._held: deque[Claim] = deque()
        self._running: set[_Running] = set()
        # What ends without having run; jobs that were cancelled while the store was asked for items.
        self._ending: list[Outcome] = []
        self._cancelled: set[str] = set()
        self._is_claiming = False
        self._bytes = 0
        self._wake = trio.Event()
        self._may_claim = True
        self._is_stopped = False
        self._next_tick = 0.0
        self._is_failing = False
        self._outcomes = Outcomes(store, followers, self.figures, failures, self._note_failure, self._pace, now)

    def wake(self) -> None:
        """There may be something to claim."""
        self._may_claim = True
        self._wake.set()

    def rows_added(self, failed: int) -> None:
        """Items have come to a job, of which so many have failed before they were run."""
        if failed:
            self.figures.items[JobState.FAILED] = self.figures.items.get(JobState.FAILED, 0) + failed
        self.wake()

    def stop(self) -> None:
        """Take nothing more, and give back what does not end soon; `run` then returns."""
        self._is_stopped = True
        self._wake.set()

    def cancel(self, job_id: str) -> None:
        """Give up what runs of a job that was cancelled."""
        for running in self._running:
            if running.claim.job_id == job_id:
                running.end = JobState.CANCELLED
                running.scope.cancel()
        self._drop(job_id)
        if self._is_claiming:
            self._cancelled.add(job_id)
        self._wake.set()

    def _drop(self, job_id: str) -> None:
        """What is held of a job that was cancelled ends without having run."""
        self._ending += [_outcome(claim, JobState.CANCELLED) for claim in self._held if claim.job_id == job_id]
        self._held = deque(claim for claim in self._held if claim.job_id != job_id)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outcomes.run)
            async with trio.open_nursery() as items:
                while not self._is_stopped:
                    self._wake = trio.Event()
                    pause = TICK_SECONDS
                    with self._failures.noted("job", "the runner of jobs failed, and goes on"):
                        await self._tick()
                        await self._claim()
                        await self._start(items)
                        pause = self._pause()
                    with trio.move_on_after(pause):
                        await self._wake.wait()
                nursery.cancel_scope.deadline = trio.current_time() + LEAVE_SECONDS + STORE_SECONDS
                await self._leave()
            self._outcomes.close()

    async def _leave(self) -> None:
        held, self._held = self._held, deque()
        for outcome in (*self._ending, *map(_given_back, held)):
            self._outcomes.add(outcome)
        with trio.move_on_after(LEAVE_SECONDS):
            while self._running:
                self._wake = trio.Event()
                await self._wake.wait()
        for running in self._running:
            running.end = JobState.QUEUED
            running.scope.cancel()

    async def _tick(self) -> None:
        if trio.current_time() < self._next_tick:
            return
        self._next_tick = trio.current_time() + TICK_SECONDS
        self._may_claim = True  # what was to be tried again
        try:
            for job_id in await self._store.expire(self._now()):
                self._followers.tell(job_id)
            self.figures.store = await self._store.figures()
        except ServerError as error:
            self._note_failure(error)

    async def _claim(self) -> None:
        """As many as the models should have, twice, with those that are held."""
        if not self._may_claim:
            return
        room = self._room()
        self._may_claim, self._is_claiming = False, True
        try:
            with trio.CancelScope(shield=True):  # else items could be claimed that nobody runs
                claims = await self._store.claim(room, 1, self._now())
        except ServerError as error:
            self._note_failure(error)
            return
        finally:
            self._is_claiming = False
            cancelled, self._cancelled = self._cancelled, set()
        self._is_failing = False
        self._held += claims
        for job_id in cancelled:
            self._drop(job_id)
        # Nothing is left to claim but of models that should have no more now; these wake the runner.
        self._may_claim = self._may_claim or bool(claims)
        for job_id in {claim.job_id for claim in claims}:
            self._followers.tell(job_id)

    def _room(self) -> dict[str, int]:
        """How many more of each model should be claimed."""
        held = Counter(claim.model for claim in self._held)
        return {model: self._wanted(model, lane) - held[model] for model, lane in self._lanes.items()}

    def _wanted(self, model: str, lane: Lane) -> int:
        if self._now() < lane.not_before:
            return 0
        return 2 * lane.wanted(self._executor.load_of(model)) - lane.in_flight

    async def _start(self, items: trio.Nursery) -> None:
        """Run of what is held what there is room for."""
        ending, self._ending = self._ending, []
        for outcome in ending:
            self._outcomes.add(outcome)
        for number, running in enumerate(self._chosen()):
            if number and not number % self._pace.together and self._pace.is_live(trio.current_time()):
                await trio.sleep(REST_SECONDS)  # as many are as much as a live request should wait for
            items.start_soon(self._run, running)

    def _chosen(self) -> list[_Running]:
        """Of what is held, what there is room for: it runs from now on."""
        now = self._now()
        chosen: list[_Running] = []
        left: deque[Claim] = deque()
        rooms: dict[tuple[str, str], int] = {}
        for claim in self._held:
            if claim.deadline <= now:
                self._outcomes.add(_outcome(claim, JobState.EXPIRED))
                continue
            lane = self._lane(claim.model)
            place = claim.model, claim.kind
            if place not in rooms:
                rooms[place] = lane.room(self._executor_of(claim).load_of(claim.model), now)
            fits = not self._bytes or self._bytes + claim.byte_size <= MAX_REQUEST_BYTES
            if rooms[place] > 0 and fits:
                rooms[place] -= 1
                lane.in_flight += 1
                self._bytes += claim.byte_size
                deadline = trio.current_time() + max(claim.deadline - now, 0.0)
                chosen.append(_Running(claim, trio.CancelScope(deadline=deadline)))
            else:
                left.append(claim)
        self._held = left
        self._running.update(chosen)
        return chosen

    def _executor_of(self, claim: Claim) -> JobExecutor:
        return self._executors.get(claim.kind, self._executor)

    def _lane(self, model: str) -> Lane:
        lane = self._lanes.get(model)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES:
                self._lanes = {name: lane for name, lane in self._lanes.items() if lane.in_flight}
            lane = self._lanes[model] = Lane(self._most)
            self._may_claim = True
        return lane

    def _pause(self) -> float:
        if any(map(self._may_have_room, {(claim.model, claim.kind): claim for claim in self._held}.values())):
            return PAUSE_SECONDS
        if self._may_claim and not self._held:
            return 0.0
        if self._may_claim and any(room > 0 for room in self._room().values()):  # of another model than what is held
            return PAUSE_SECONDS
        return max(self._next_tick - trio.current_time(), 0.0)

    def _may_have_room(self, claim: Claim) -> bool:
        """Whether its model may have room without that one of its items has ended, which wakes the runner."""
        lane = self._lane(claim.model)
        return lane.in_flight < lane.wanted(self._executor_of(claim).load_of(claim.model))

    async def _run(self, running: _Running) -> None:
        claim = running.claim
        outcome = None
        with running.scope:
            outcome = await self._outcome(claim)
        if outcome is None:
            is_given_back = running.end is JobState.QUEUED
            outcome = _given_back(claim) if is_given_back else _outcome(claim, running.end)
        is_retry = outcome.state is JobState.QUEUED and outcome.is_counted
        self._outcomes.add(outcome, partial(self._stored, running, was_available=not is_retry))

    def _stored(self, running: _Running, *, was_available: bool) -> None:
        self._running.remove(running)
        self._bytes -= running.claim.byte_size
        self._lanes[running.claim.model].ended(was_available=was_available, now=self._now())
        self.wake()

    async def _outcome(self, claim: Claim) -> Outcome:
        def tell(response: InferenceResponse) -> None:
            self._followers.tell_partial(claim.job_id, claim.index, response)

        try:
            request = await self._store.request(claim)
            result = await self._executor_of(claim).run(claim.owner, request, tell)
        except Unavailable as error:
            if self._is_stopped:
                return _given_back(claim)
            later = self._now() + retry_seconds(claim.attempt - 1)
            return replace(_outcome(claim, JobState.QUEUED, error), not_before=later)
        except FailedItem as failed:
            return replace(_outcome(claim, JobState.FAILED, failed.error), result=failed.result)
        except ServerError as error:
            return _outcome(claim, JobState.FAILED, error)
        except Exception as error:
            self._failures.note("job", error, f"a request of job '{claim.job_id}' failed")
            return _outcome(claim, JobState.FAILED, Internal(f"internal error: {text_of(error)}"))
        return Outcome(claim.job_id, claim.index, claim.claim, JobState.SUCCEEDED, result)

    def _note_failure(self, error: ServerError) -> None:
        """Once, until the store works again."""
        if not self._is_failing:
            self._is_failing = True
            what = "" if isinstance(error, InsufficientStorage) else " failed"
            logger.error("the job store%s: %s; jobs wait until it works again", what, error.message)


def _outcome(claim: Claim, state: JobState, error: ServerError | None = None) -> Outcome:
    told = None if error is None else ItemError(error.kind, error.message)
    return Outcome(claim.job_id, claim.index, claim.claim, state, error=told)


def _given_back(claim: Claim) -> Outcome:
    return Outcome(claim.job_id, claim.index, claim.claim, JobState.QUEUED, is_counted=False)
