"""Riding: how many requests of jobs a model is given beside its live ones, so that their p99 stays what it is. Pure.

Some models run a full batch in the time of one request, others take as long for each. So from the batches that a model
has run follow the seconds that rows of jobs add to one (`BatchSeconds`), and from the live requests in these how long
they would have taken without jobs (`LiveTimes`). That, and the server's own time for rows (`pace`), gives each start of
rows a price: how many live requests it is expected to make late, later than 1.15 times their p99.

1. What makes none late goes: a full batch where rows cost little, one at a time where live requests take much longer
   than a row.
2. Less than half of a percent of the live requests may be late because of jobs. Each that is answered earns so much,
   which pays for rows that have a price. These are as many as are had for the least: where already one makes those late
   that meet it, many go together, as far as a batch takes at most twice as long by them, or little.
3. Whoever was late in fact, and was not paid for, is paid for afterwards. What was paid for too much comes back.
4. Rows that go to another model have that price, too, without what they add to a batch.

What is not known yet costs as much as it may: as if a model took as long for each row, and all would be late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from actors.jobs.batch_seconds import BatchSeconds
from actors.jobs.live_times import LiveTimes
from actors.jobs.pace import MOST_ROWS, PIECES, piece_seconds

# Of live requests, that may be late: because of jobs, and those that are so by themselves with them; and what jobs have
# of that at least.
LATE = 0.004
ALL_LATE = 0.007
LEAST_LATE = 0.001
# What is saved up at most: a start that costs more goes when there is so much, and is paid for afterwards.
MOST_CREDIT = 4.0
# With what it begins, which is enough for one try: what rows cost is known only then.
FIRST_CREDIT = 1.0
MOST_DEBT = 64.0
# No batch with rows of jobs alone is larger than makes a row cost so much more than in the best one.
WORTHWHILE = 1.25
# What a batch may take longer where that has a price, if it does not take twice as long.
BURST_SECONDS = 0.005
# One round in so many takes none along, which shows what a batch takes without. Rounds that begin sooner are none.
_COMPARED = 8
ROUND_SECONDS = 0.002
# How much of it is forgotten with each look, how many live requests there have been at a time.
_FORGOTTEN = 0.01
_MOST_WORK = 256
# Over how long the rate of live rows is averaged; what part of a model's time they are taken for at most.
_RATE_SECONDS = 2.0
_MOST_FOLLOWS = 0.75


@dataclass(frozen=True, slots=True)
class _Offer:
    """A start that was allowed: what it adds to a batch, how many live requests are late by that, and how many by what
    the server does with its rows at other times."""

    added: float = 0.0
    late: float = 0.0
    elsewhere: float = 0.0

    @property
    def price(self) -> float:
        return self.late + self.elsewhere


_NO_OFFER = _Offer()


@dataclass(frozen=True, slots=True)
class _Work:
    """A batch with rows of jobs, or with live requests in whose place these had gone before: from when to when it has
    run, and how much they have added to it."""

    since: float
    until: float
    added: float


class Riding:
    """Of one model. Times are in seconds of one clock."""

    __slots__ = (
        "_cost",
        "_credit",
        "_crowd",
        "_last_round",
        "_last_start",
        "_offer",
        "_paid",
        "_planned",
        "_round",
        "_rows",
        "_rows_at",
        "_was_tried",
        "_work",
        "times",
    )

    def __init__(self) -> None:
        self.times = LiveTimes()
        self._cost = BatchSeconds()
        self._credit = FIRST_CREDIT
        self._was_tried = False
        # How many late requests were paid for that have not been seen.
        self._paid = 0.0
        # How many live requests may have to wait for a start: as many as there have been at a time, lately.
        self._crowd = 0.0
        self._round = 0
        # Live rows, of which those count less that are longer ago.
        self._rows = 0.0
        self._rows_at = 0.0
        self._last_start = -math.inf
        self._last_round = -math.inf
        # The start that was allowed last.
        self._offer = _NO_OFFER
        # Batches with rows of jobs; and what was begun: when, and how much it was to add.
        self._work: deque[_Work] = deque(maxlen=_MOST_WORK)
        self._planned: deque[tuple[float, float]] = deque(maxlen=_MOST_WORK)

    @property
    def is_known(self) -> bool:
        """Whether enough has been seen to say what may go."""
        return self.times.is_known and self._cost.is_known

    def ran(
        self,
        started: float,
        now: float,
        arrivals: Sequence[float],
        live_rows: int,
        job_rows: int,
        *,
        is_clean: bool = True,
    ) -> None:
        """The model has run a batch, with live requests that had arrived then. What these have taken counts where it
        `is_clean` of what jobs cost the server."""
        seconds, rows = now - started, live_rows + job_rows
        if not rows:
            return
        self._cost.observe(rows, seconds, now)
        added = 0.0
        if job_rows:
            added = min(self._added(live_rows, job_rows, seconds), seconds) + piece_seconds(job_rows)
        self._note_rate(live_rows, now)
        follows = self._follows()
        has_waited = False
        for arrival in arrivals:
            passed_over, waited = self._waited(arrival, started)
            has_waited = has_waited or passed_over > 0.0
            late = (passed_over + waited + added) * follows
            self._answered(now - arrival, min(late, now - arrival), now, is_clean=is_clean)
        if job_rows or has_waited:
            self._work.append(_Work(started, now, added))

    def _may_be_late(self) -> float:
        """Which part of the live requests, because of jobs."""
        return max(min(LATE, ALL_LATE - self.times.part_beyond), LEAST_LATE) if self.times.is_known else 0.0

    def _note_rate(self, live_rows: int, now: float) -> None:
        """So many live rows have run."""
        self._rows = self._rows * math.exp((self._rows_at - now) / _RATE_SECONDS) + live_rows
        self._rows_at = now

    def _follows(self) -> float:
        """What becomes of a second that live requests wait: those that come meanwhile have others wait, and so on."""
        if not self._cost.is_known:
            return 1.0
        return 1 / (1 - min(self._rows / _RATE_SECONDS * self._cost.each(), _MOST_FOLLOWS))

    def _added(self, live: int, jobs: int, seconds: float) -> float:
        """What rows of jobs have added to a batch that has taken so long."""
        if not live:
            return seconds
        if not self._cost.is_known:
            return seconds * jobs / (live + jobs)
        return self._adds(live, jobs)

    def _waited(self, arrival: float, started: float) -> tuple[float, float]:
        """What of its time in the queue a request owes to jobs: where they had its place, and elsewhere."""
        passed_over = waited = 0.0
        for work in reversed(self._work):
            if work.until <= arrival:
                break
            if arrival < work.since < started:
                passed_over += work.until - work.since
            elif (both := min(work.until, started) - max(work.since, arrival)) > 0.0:
                waited += work.added * both / (work.until - work.since)
        return passed_over, waited

    def _answered(self, seconds: float, added: float, now: float, *, is_clean: bool) -> None:
        """A live request has taken so long, of which jobs have added a part."""
        self._credit = min(self._credit + self._may_be_late(), MOST_CREDIT)
        if self.times.is_known and seconds > self.times.limit >= seconds - added:
            unpaid = max(1.0 - self._paid, 0.0)
            self._paid = max(self._paid - 1.0, 0.0)
            self._credit = max(self._credit - unpaid, -MOST_DEBT)
        if is_clean:
            self.times.add(seconds - added, now)

    def beside(self, live: int, room: int, most_of_batch: int, now: float, *, is_running: bool) -> int:
        """How many go with live requests, of which there are so many with those that start now; `room` is how many more
        the model runs at the same time. With `is_running` others have not been answered yet."""
        self._settle(now, is_running=is_running)
        self._note_crowd(live)
        if not self.is_known or not self.is_round(now):
            return 0
        self._last_round = now
        self._round += 1
        if not self._round % _COMPARED:
            return 0
        if room <= 0:
            if is_running or self._credit < MOST_CREDIT:
                return 0
            return self._offered(most_of_batch, _Offer(self._cost.mean(most_of_batch), 2.0 * live))
        return self._taken(min(room, MOST_ROWS), min(live, most_of_batch))

    def is_round(self, now: float) -> bool:
        """Whether it is time to ask again."""
        return now - self._last_round >= ROUND_SECONDS

    def aside(self, most: int, live: int, now: float) -> int:
        """How many of so many go to another model, while this one has so many live requests."""
        self._settle(now, is_running=False)
        self._note_crowd(live)
        if not self.is_known:
            return min(most, 1)
        return self._taken(min(most, MOST_ROWS), 0)

    def _note_crowd(self, live: int) -> None:
        self._crowd = max(live, self._crowd - _FORGOTTEN * (self._crowd - live))

    def _taken(self, most: int, rows: int) -> int:
        """How many, and at most so many, go to a batch with so many live rows, or to another model."""
        soon = sum(added for _, added in self._planned)
        bound = max(self._cost.mean(rows), BURST_SECONDS) if rows else BURST_SECONDS
        free, cheapest = 0, math.inf
        count, offer, live = 0, _NO_OFFER, self._crowd
        for each in _counts(most):
            offered = self._priced(each, self._adds(rows, each) if rows else 0.0, soon, live)
            if offered.price <= live * self._may_be_late():
                free, count, offer = each, each, offered
            elif not free and offered.price / each <= cheapest and (each == 1 or offered.added <= bound):
                cheapest, count, offer = offered.price / each, each, offered
        return self._offered(count, offer) if count else 0

    def _priced(self, count: int, added: float, soon: float, live: float) -> _Offer:
        """A start of so many that add so much to a batch; `soon` is what others do that have gone before."""
        piece, follows = piece_seconds(count), self._follows()
        late = self.times.part_late((soon + added + piece) * follows)
        return _Offer(added + piece, live * late, live * (PIECES - 1) * self.times.part_late(piece * follows))

    def in_gap(self, most: int, distance: float, now: float) -> int:
        """How many go while a model has no live requests, though some come at such a distance. None others run."""
        self._settle(now, is_running=False)
        if not self.is_known:
            return 0
        count = self.worthwhile(most)
        seconds = self._cost.mean(count) + piece_seconds(count)
        # Some of those that come meanwhile wait for nearly all of it, others for little.
        follows = self._follows()
        parts = (part * seconds * follows for part in (0.25, 0.5, 0.75, 1.0))
        late = sum(map(self.times.part_late, parts)) / 4
        coming = seconds / distance * follows if distance > 0.0 else math.inf
        return self._offered(count, _Offer(seconds, late * min(coming, MOST_CREDIT) if late else 0.0))

    def worthwhile(self, most: int) -> int:
        """How many rows make a batch in which one costs hardly more than in a larger one."""
        if not self._cost.is_known:
            return most
        best = self._cost.mean(most) / most
        return next(count for count in range(1, most + 1) if self._cost.mean(count) / count <= WORTHWHILE * best)

    def _adds(self, rows: int, count: int) -> float:
        """What so many rows of jobs add to a batch of others."""
        return max(self._cost.mean(rows + count) - self._cost.mean(rows), 0.0)

    def _offered(self, count: int, offer: _Offer) -> int:
        """The count, or none where that costs too much."""
        if offer.price > self._credit < (MOST_CREDIT if self._was_tried else FIRST_CREDIT):
            return 0
        self._offer = offer
        return count

    @property
    def is_free(self) -> bool:
        """Whether of those that were allowed last fewer may go as well: others cost as little at another time."""
        return self._offer.price <= self._may_be_late()

    def withdraw(self) -> None:
        """What was allowed last does not go: whatever goes in its place has no price. Whom that makes late is paid for
        afterwards."""
        self._offer = _NO_OFFER

    def went(self, now: float) -> None:
        """Of those that might go, at least one did."""
        offer, self._offer = self._offer, _NO_OFFER
        self._was_tried = self._was_tried or offer.price > 0.0
        self._credit = max(self._credit - offer.price, -MOST_DEBT)
        self._paid += offer.late
        self._planned.append((now, offer.added))
        self._last_start = now

    def _settle(self, now: float, *, is_running: bool) -> None:
        """Forget what was offered and not taken, and what was begun so long ago that no live request meets it now."""
        self._offer = _NO_OFFER
        if not self.is_known:
            return
        self._cost.forget(now)
        while self._planned and self._planned[0][0] < now - self.times.median:
            self._planned.popleft()
        if self._paid and not is_running and now - self._last_start > 2 * self.times.limit:
            self._credit = min(self._credit + self._paid, MOST_CREDIT)
            self._paid = 0.0


def _counts(most: int) -> list[int]:
    """The most, and some that are fewer."""
    return [*(1 << power for power in range(max(most - 1, 0).bit_length())), most]
