"""Whose turn it is, and what became of each turn. Between the command line and `load`.

The servers are measured in turns, row by row, and the order within a row changes with every round, so that a machine
that slows down or a neighbour that wakes up weighs on both alike. Knows no processes: `attempt` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.load import LoadFailed, Measurement
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
        return Measurement(
            throughput=median(m.throughput for m in measured),
            p50=median(m.p50 for m in measured),
            p99=median(m.p99 for m in measured),
        )

    def ratio(self, row: Row, ours: str, theirs: str) -> float | None:
        """Our median throughput over theirs: above 1, ours is faster."""
        mine, other = self.typical(row, ours), self.typical(row, theirs)
        return mine.throughput / other.throughput if mine and other else None

    def ratio_range(self, row: Row, ours: str, theirs: str) -> tuple[float, float] | None:
        """The smallest and the largest ratio of one round; None below two rounds that both servers finished."""
        mine, other = self._measured(row, ours), self._measured(row, theirs)
        ratios = [mine[number].throughput / other[number].throughput for number in mine.keys() & other.keys()]
        return (min(ratios), max(ratios)) if len(ratios) > 1 else None

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
