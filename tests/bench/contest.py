"""Whose turn it is, and what became of each turn. Between the command line and `load`.

The servers are measured in turns, row by row, and the order within a row changes with every round, so that a machine
that slows down or a neighbour that wakes up weighs on both alike. Knows no processes: `attempt` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.rows import Row

# A server that cannot do a row fails quickly or by a time limit; trying in every round would only make the run long.
FAILURES_UNTIL_LEFT_OUT = 2


@dataclass(frozen=True, slots=True)
class Turn:
    round: int  # from 0
    row: Row
    server: str


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str


Outcome = Measurement | Failure


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two servers that were measured in the same rounds, one directly after the other."""

    median: float
    least: float
    most: float
    rounds: int


@dataclass(slots=True)
class Results:
    """What became of every turn, by row, server and round. A turn that was never taken is absent."""

    outcomes: dict[tuple[Row, str], dict[int, Outcome]] = field(default_factory=dict)

    def add(self, turn: Turn, outcome: Outcome) -> None:
        self.outcomes.setdefault((turn.row, turn.server), {})[turn.round] = outcome

    def failures(self, row: Row, server: str) -> list[str]:
        return [o.reason for o in self.outcomes.get((row, server), {}).values() if isinstance(o, Failure)]

    def typical(self, row: Row, server: str) -> Measurement | None:
        """The median over the rounds that gave figures, each figure by itself; None where no round did."""
        measured = list(self._measured(row, server).values())
        if not measured:
            return None
        processor = [m.processor for m in measured if m.processor is not None]
        return Measurement(
            throughput=median(m.throughput for m in measured),
            p50=median(m.p50 for m in measured),
            p99=median(m.p99 for m in measured),
            processor=median(processor) if processor else None,
        )

    def throughput_ratio(self, row: Row, ours: str, theirs: str) -> Ratio | None:
        """Above 1, ours is faster."""
        return self._ratio(row, ours, theirs, lambda measured: measured.throughput)

    def p50_ratio(self, row: Row, ours: str, theirs: str) -> Ratio | None:
        """Below 1, ours is faster."""
        return self._ratio(row, ours, theirs, lambda measured: measured.p50)

    def _ratio(self, row: Row, ours: str, theirs: str, figure: Callable[[Measurement], float]) -> Ratio | None:
        mine, other = self._measured(row, ours), self._measured(row, theirs)
        ratios = [figure(mine[number]) / figure(other[number]) for number in sorted(mine.keys() & other.keys())]
        return Ratio(median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None

    def _measured(self, row: Row, server: str) -> dict[int, Measurement]:
        outcomes = self.outcomes.get((row, server), {})
        return {number: outcome for number, outcome in outcomes.items() if isinstance(outcome, Measurement)}


def turns(rows: Sequence[Row], servers: Sequence[str], rounds: int) -> Iterator[Turn]:
    """Rounds outermost: a run that is broken off has every row, in fewer rounds."""
    for number in range(rounds):
        order = servers if number % 2 == 0 else servers[::-1]
        for row in rows:
            for server in order:
                yield Turn(number, row, server)


def hold(
    schedule: Iterator[Turn],
    attempt: Callable[[Turn], Measurement],
    results: Results,
    tell: Callable[[Turn, Outcome], None],
) -> None:
    """Take the turns one after another, filling `results`. Whatever ends it early leaves there what was measured."""
    for turn in schedule:
        if len(results.failures(turn.row, turn.server)) >= FAILURES_UNTIL_LEFT_OUT:
            continue
        outcome: Outcome
        try:
            outcome = attempt(turn)
        except LoadFailed as error:
            outcome = Failure(str(error))
        results.add(turn, outcome)
        tell(turn, outcome)
