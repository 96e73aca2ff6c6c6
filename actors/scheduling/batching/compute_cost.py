"""Online regression of a batch's compute time on its size, for adaptive batching. Plain and synchronous."""

from __future__ import annotations

# The weight that an observation keeps with each one that follows.
DECAY = 0.98
# Deviations above the mean that count as the slow end.
DEVIATIONS = 3.0
# Batches to see before the estimate is used.
ENOUGH = 3


class ComputeCost:
    """Seconds as a straight line over the rows, fitted to recent batches; both of its parts are at least 0.

    While all batches have about the same size, the line's slope is what it was when they had not, at first `growing` of
    what it would be if compute time grew in step with the rows. Half is enough for larger batches to be worth a try.
    """

    def __init__(self, growing: float = 0.5) -> None:
        self._seen = 0
        # Sums over the observations, with falling weights: of 1, rows, rows², seconds, rows·seconds.
        self._weight = self._rows = self._squares = self._seconds = self._products = 0.0
        # How far an observation lies from its estimate, as a part of that; an average.
        self._deviation = 0.0
        # The share of a mean batch's time that grows with its rows.
        self._growing = growing

    @property
    def is_known(self) -> bool:
        return self._seen >= ENOUGH

    def observe(self, rows: int, seconds: float) -> None:
        if self.is_known:
            expected = self.mean(rows)
            if expected > 0:
                deviation = abs(seconds - expected) / expected
                self._deviation += (1 - DECAY) * (deviation - self._deviation)
        self._seen += 1
        self._weight = self._weight * DECAY + 1
        self._rows = self._rows * DECAY + rows
        self._squares = self._squares * DECAY + rows * rows
        self._seconds = self._seconds * DECAY + seconds
        self._products = self._products * DECAY + rows * seconds
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - mean_rows**2
        if variance > 0.01 * mean_rows**2 and mean_seconds > 0:
            slope = (self._products / self._weight - mean_rows * mean_seconds) / variance
            self._growing = min(max(slope * mean_rows / mean_seconds, 0.0), 1.0)

    def mean(self, rows: int) -> float:
        """The expected seconds of a batch; only once it `is_known`."""
        of_mean = rows * self._weight / self._rows
        return self._seconds / self._weight * (1 + self._growing * (of_mean - 1))

    def slow(self, rows: int) -> float:
        """The seconds of a batch that is among the slowest of its size."""
        return self.mean(rows) * (1 + DEVIATIONS * self._deviation)
