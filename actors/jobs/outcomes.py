"""Outcomes: an actor that stores what has become of items, those together that have ended meanwhile.

Flow: runner → [outcomes] → store; then followers are told. Started by the runner. What cannot be stored, since the disk
is full, is held and tried again. Beside live requests (`pace`) outcomes are gathered for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from actors.jobs.feed import retry_seconds
from actors.jobs.figures import RunnerFigures
from actors.jobs.followers import Followers
from actors.jobs.pace import Pace
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.jobs.states import JobState
from protocol.jobs.store import JobStore, Outcome

MOST_TOGETHER = 64
_MOST_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """`stored` is called once the outcome is, or is not to be."""

    outcome: Outcome
    stored: Callable[[], None]


class Outcomes:
    """Of one runner, which bounds how many there are. Cancelled, what is not stored is lost; its items run again."""

    def __init__(
        self,
        store: JobStore,
        followers: Followers,
        figures: RunnerFigures,
        failures: CallbackFailures,
        note_failure: Callable[[ServerError], None],
        pace: Pace,
        now: Callable[[], float],
    ) -> None:
        """`note_failure` is told where the store fails."""
        self._store = store
        self._followers = followers
        self._figures = figures
        self._failures = failures
        self._note_failure = note_failure
        self._pace = pace
        self._now = now
        self._waiting: deque[_Ended] = deque()
        self._changed = trio.Event()
        self._is_closed = False

    def add(self, outcome: Outcome, stored: Callable[[], None] = lambda: None) -> None:
        """`stored` must not raise."""
        self._waiting.append(_Ended(outcome, stored))
        self._changed.set()

    def close(self) -> None:
        """No more come: `run` returns when these are stored."""
        self._is_closed = True
        self._changed.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while self._waiting or not self._is_closed:
                if not self._waiting:
                    self._changed = trio.Event()
                    await self._changed.wait()
                if not self._is_closed:
                    await trio.sleep(self._pace.gathering(trio.current_time()))
                together = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
                if together and not await self._store_all(together):
                    for each in together:  # what is small, or right, may still go
                        nursery.start_soon(self._store_one, each)

    async def _store_all(self, together: Sequence[_Ended]) -> bool:
        """Returns whether that is done; where not, some of them may be stored."""
        try:
            jobs = await self._store.finish([each.outcome for each in together], self._now())
        except ServerError as error:
            self._note_failure(error)
            return False
        except Exception as error:
            self._failures.note("job", error, "requests of jobs could not be ended")
            if len(together) > 1:
                return False
            jobs = [None]  # it would fail again
        for each, job in zip(together, jobs, strict=True):
            if job is not None:
                self._count(each.outcome)
            each.stored()
        for job_id in {each.outcome.job_id for each, job in zip(together, jobs, strict=True) if job is not None}:
            self._followers.tell(job_id)
        return True

    async def _store_one(self, each: _Ended) -> None:
        """However long that takes."""
        failures = 0
        while not await self._store_all([each]):
            await trio.sleep(min(retry_seconds(failures), _MOST_RETRY_SECONDS))
            failures += 1

    def _count(self, outcome: Outcome) -> None:
        figures = self._figures
        if outcome.state is JobState.QUEUED:
            figures.retries += outcome.is_counted
        else:
            figures.items[outcome.state] = figures.items.get(outcome.state, 0) + 1
