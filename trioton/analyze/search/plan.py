"""The plan of a search: a baseline, rounds that halve the field, neighbours of the best, and the last three in turns.

A generator of trials that is sent their outcomes, so it has no clock: time is the sum of what outcomes have cost. The
same outcomes make the same plan, so a search that was killed goes on by being told again what it had found.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

from trioton.analyze.search.aim import Aim
from trioton.analyze.search.candidates import Candidate, Measured, Outcome, Record, Space, Trial
from trioton.analyze.search.curves import crossing, keeps
from trioton.analyze.search.paired import turns_needed

# Of candidates whose difference is chance, one in twenty is told to be the better one, over all pairs of three.
SIGNIFICANCE = 0.05 / 3
FINALISTS = 3
DEFAULT = ""
BASELINE, ROUND, NEAR, FINAL = "baseline", "round", "near the best", "final"

# Rates that are offered are powers of this.
GRID = 1.05
_FIRST_STEP, _LEAST_STEP, _LONGEST_JUMP = 4, 1, 16
# Parts of the budget.
_UNTIL_ROUNDS, _UNTIL_NEAR, UNTIL_FINALS = 0.15, 0.5, 0.75
# Of trials for a candidate in a round.
_TRIALS = 3.5
_SHORTEST_SECONDS, _LEAST_SECONDS, _LONGEST_SECONDS = 0.2, 1.0, 10.0
_LEAST_REQUESTS = 250
# A slow model in little time gets shorter trials rather than too few.
_LEAST_TRIALS = 30
_MOST_CANDIDATES = 24
_NEIGHBOURS = 16
_MOST_TURNS = 13
_FLOOR = 1e-3  # requests a second
# The first rate is no greater: what is predicted leaves out what a server does with a request, and an overload ends
# only when all that waits is answered.
_MOST_FIRST = 4_000.0
# The default is measured at this part of its greatest rate where latency is the aim and no rate is given.
_USUAL_LOAD = 0.7

Trials = Generator[Trial, Outcome, None]


def grid_rate(index: int) -> float:
    return float(f"{GRID**index:.6g}")


def grid_index(rate: float) -> int:
    """Of the greatest rate of the grid that is not above, but for the rounding of `grid_rate`."""
    return math.floor(math.log(max(rate, _FLOOR)) / math.log(GRID) + 1e-3)


@dataclass(slots=True)
class Plan:
    """A search within `budget` seconds, of which `spent` are gone at the beginning.

    Attributes:
        records: all candidates that were looked at, in that order.
        rate: the fixed rate, once it is known; see `Aim`.
        contest_rate: at which the finalists were compared; 0 before.
        turns: the outcomes of the finals, by candidate.
    """

    space: Space
    aim: Aim
    budget: float
    spent: float = 0.0
    records: dict[str, Record] = field(default_factory=dict)
    rate: float = 0.0
    contest_rate: float = 0.0
    turns: dict[str, list[Measured]] = field(default_factory=dict)
    _overhead: float = 1.0
    _start: float = 0.0
    _known: dict[str, Candidate] = field(default_factory=dict)

    def trials(self) -> Trials:
        """Which trials to make. May be given up at any time: what is known then is in `records`."""
        first = list(self.space.first())
        self._know(first)
        self._start = self.spent
        self.rate = self.aim.rate
        yield from self._baseline(first[0])
        if self.records[DEFAULT].failure:
            return
        yield from self._rounds(first)
        yield from self._near_the_best()
        yield from self._finals()

    def ranked(self) -> list[Record]:
        """All that were measured and are not out of the question, the best first."""
        found = [(self.value(record), record) for record in self.records.values()]
        good = [(value, record) for value, record in found if value > -math.inf]
        return [record for _, record in sorted(good, key=lambda pair: (-pair[0], pair[1].candidate.changes))]

    def value(self, record: Record) -> float:
        return self.aim.value(record, self.rate)

    def candidate(self, key: str) -> Candidate:
        return self._known[key]

    @property
    def known(self) -> Sequence[Candidate]:
        """All candidates, also those that the formula has sorted out."""
        return list(self._known.values())

    def _know(self, candidates: Iterable[Candidate]) -> None:
        for each in candidates:
            self._known.setdefault(each.key, each)

    def _measure(self, key: str, rate: float, seconds: float, stage: str) -> Generator[Trial, Outcome, Outcome]:
        trial = Trial(key, rate, round(seconds, 3), stage)
        outcome = yield trial
        record = self.records.setdefault(key, Record(self._known[key]))
        record.measured.append(Measured(trial, outcome))
        self.spent += outcome.cost
        over = max(0.0, outcome.cost - trial.seconds)
        self._overhead += 0.2 * (over - self._overhead)
        return outcome

    def _at(self, part: float) -> float:
        """When so much of the budget is spent that was there at the beginning."""
        return self._start + part * max(0.0, self.budget - self._start)

    def _has_time(self, seconds: float, until: float) -> bool:
        return self.spent + seconds + self._overhead <= self._at(until)

    # The baseline

    def _baseline(self, default: Candidate) -> Trials:
        guess = self.rate or min((default.predicted or 20.0) * 0.7, _MOST_FIRST)
        seconds = self._seconds(guess, (self._at(_UNTIL_ROUNDS) - self._start) / 6)
        if self.rate:
            yield from self._measure(DEFAULT, self.rate, seconds, BASELINE)
            return
        yield from self._climb(DEFAULT, grid_index(guess), _FIRST_STEP, seconds, BASELINE, _UNTIL_ROUNDS, most_down=99)
        if self.aim.has_fixed_rate:
            greatest = crossing(self.records[DEFAULT].measured, self.aim.bound).rate
            part = _USUAL_LOAD if self.aim.objective == "latency" else 0.95
            self.rate = grid_rate(grid_index(part * greatest))
            yield from self._measure(DEFAULT, self.rate, seconds, BASELINE)

    def _seconds(self, rate: float, share: float) -> float:
        """A trial of some hundred requests at least, but for the slowest models."""
        least = min(
            max(_LEAST_SECONDS, _LEAST_REQUESTS / max(rate, _FLOOR)), 3 * _LONGEST_SECONDS, self.budget / _LEAST_TRIALS
        )
        least = max(least, _SHORTEST_SECONDS)
        return min(max(least, share), max(least, _LONGEST_SECONDS))

    def _climb(
        self, key: str, start: int, step: int, seconds: float, stage: str, until: float, *, most_down: int
    ) -> Trials:
        """Finds the last rate of the grid that keeps the bound, to `step`: upwards by growing steps from `start`, and
        between the last that does and the first that does not. Downwards `most_down` times."""
        low: int | None = None
        high: int | None = None
        at, jump, downs = start, step, 0
        while self._has_time(seconds, until) or (stage == BASELINE and self._needs_more(key, low, seconds)):
            outcome = yield from self._measure(key, grid_rate(at), seconds, stage)
            if outcome.failure:
                return
            if keeps(outcome, grid_rate(at), self.aim.bound):
                low = at
            else:
                high = at
            if low is None:
                downs += 1
                if downs > most_down or grid_rate(at) <= _FLOOR:
                    return
                # What was served is more than the greatest rate; where that is far below what was offered, go there.
                at, jump = min(at - jump, grid_index(outcome.achieved or grid_rate(at))), min(2 * jump, _LONGEST_JUMP)
            elif high is None:
                at, jump = at + jump, min(2 * jump, _LONGEST_JUMP)
            elif high - low <= step:
                return
            else:
                at = low + max(step, (high - low) // 2 // step * step)

    def _needs_more(self, key: str, low: int | None, seconds: float) -> bool:
        """Of the baseline: one trial in any case, and some rate that keeps the bound if there is time at all."""
        return key not in self.records or (low is None and self._has_time(seconds, _UNTIL_NEAR))

    # Rounds

    def _rounds(self, first: Sequence[Candidate]) -> Trials:
        start = self.spent
        whole = self._at(_UNTIL_NEAR) - start
        count = self._first_count(whole, len(first) - 1)
        if count < 1:
            return
        rounds = max(1, math.ceil(math.log2(max(1.0, count / FINALISTS))))
        field_now = [each.key for each in first[1 : count + 1]]
        step = _FIRST_STEP
        for number in range(1, rounds + 1):
            ends = start + whole * number / rounds
            until = (ends - self._start) / max(1e-9, self.budget - self._start)
            share = (ends - self.spent) / max(1, len(field_now)) / self._trials_each - self._overhead
            seconds = self._seconds(self._reference_rate(), share)
            yield from self._round(field_now, number, step, seconds, until)
            step = max(_LEAST_STEP, step // 2)
            field_now = self._next_field(max(FINALISTS, math.ceil(count / 2**number)))

    @property
    def _trials_each(self) -> float:
        return 1.0 if self.aim.has_fixed_rate else _TRIALS

    def _reference_rate(self) -> float:
        if self.aim.has_fixed_rate:
            return self.rate
        ranked = self.ranked()
        return self.value(ranked[0]) if ranked else 1.0

    def _first_count(self, seconds: float, there: int) -> int:
        """As many as can be measured in half of the time, if each takes the shortest trial."""
        each = self._trials_each * (self._seconds(self._reference_rate(), 0.0) + self._overhead)
        return min(there, _MOST_CANDIDATES, int(seconds * 0.6 / each))

    def _round(self, keys: Sequence[str], number: int, step: int, seconds: float, until: float) -> Trials:
        """All candidates are offered rates of the same grid, from the same one on."""
        stage = f"{ROUND} {number}"
        if self.aim.has_fixed_rate:
            for key in keys:
                if self._has_time(seconds, until):
                    yield from self._measure(key, self.rate, seconds, stage)
            return
        values = sorted(self.value(self.records[key]) for key in keys if key in self.records)
        base = values[len(values) // 2] if number > 1 and values else self._default_rate()
        start = grid_index(base) // step * step
        for key in keys:
            if self._has_time(seconds, until):
                yield from self._climb(key, start, step, seconds, stage, until, most_down=1)

    def _default_rate(self) -> float:
        return crossing(self.records[DEFAULT].measured, self.aim.bound).rate

    def _next_field(self, count: int) -> list[str]:
        """The best so far, and for a third of the places neighbours of the two best that were not looked at."""
        ranked = [record.candidate for record in self.ranked()]
        near: list[Candidate] = []
        for each in ranked[:2]:
            near += [other for other in self.space.neighbours(each) if other.key not in self.records]
        self._know(near)
        near.sort(key=lambda each: -(each.predicted or 0.0))
        added = list(dict.fromkeys(each.key for each in near))[: count // 3]
        return [*(each.key for each in ranked[: count - len(added)]), *added]

    # Near the best

    def _near_the_best(self) -> Trials:
        """Neighbours of the two best, whichever those are by then, from the rate on that the best one keeps."""
        while (key := self._next_neighbour()) is not None:
            best = self._reference_rate()
            share = (self._at(UNTIL_FINALS) - self._at(_UNTIL_NEAR)) / _NEIGHBOURS / 2 - self._overhead
            seconds = self._seconds(best, share)
            if not self._has_time(seconds, UNTIL_FINALS):
                return
            if self.aim.has_fixed_rate:
                yield from self._measure(key, self.rate, seconds, NEAR)
            else:
                yield from self._climb(key, grid_index(best), _LEAST_STEP, seconds, NEAR, UNTIL_FINALS, most_down=1)

    def _next_neighbour(self) -> str | None:
        for record in self.ranked()[:2]:
            near = self.space.neighbours(record.candidate)
            self._know(near)
            for other in near:
                if other.key not in self.records:
                    return other.key
        return None

    # Finals

    def _finals(self) -> Trials:
        """The best three in turns, at the rate that the best of them just keeps, each turn in another order."""
        ranked = self.ranked()[:FINALISTS]
        if len(ranked) < 2:
            return
        keys = [record.candidate.key for record in ranked]
        self.contest_rate = self.rate or grid_rate(grid_index(self.value(ranked[0]) * math.sqrt(GRID)))
        left = self.budget - self.spent
        needed = turns_needed(SIGNIFICANCE)
        seconds = self._seconds(self.contest_rate, left / len(keys) / (needed + 2) - self._overhead)
        turns = min(_MOST_TURNS, int(left / len(keys) / (seconds + self._overhead)))
        if turns < needed:
            seconds = max(_LEAST_SECONDS, left / len(keys) / needed - self._overhead)
            turns = min(needed, int(left / len(keys) / (seconds + self._overhead)))
        for turn in range(turns):
            order = keys[turn % len(keys) :] + keys[: turn % len(keys)]
            found = []
            for key in order:
                if not self._has_time(seconds, 1.0):
                    return
                outcome = yield from self._measure(key, self.contest_rate, seconds, f"{FINAL} {turn + 1}")
                found.append((key, self.records[key].measured[-1]))
                if outcome.failure:
                    return
            for key, measured in found:
                self.turns.setdefault(key, []).append(measured)
