"""Batch seconds: how long a model runs a batch of so many rows, from those it has run. Pure."""

from __future__ import annotations

from actors.scheduling.batching.compute_cost import ComputeCost

# No batch counts for more than so many times what was expected: a pause of the whole machine says nothing of a model.
_MOST_SURPRISE = 4.0
# Of the newest batch in the mean of its size. A size is known by itself when so many have been seen, lately.
_WEIGHT = 0.2
_ENOUGH = 3
_KEEP_SECONDS = 30.0


class BatchSeconds:
    """A size that the model has often run takes what it took, others what a straight line through all says. While all
    batches are alike, a model is taken to need as long for each row."""

    __slots__ = ("_line", "_sizes")

    def __init__(self) -> None:
        self._line = ComputeCost(growing=1.0)
        # By size: how many were seen, their mean, and when the newest was.
        self._sizes: dict[int, tuple[int, float, float]] = {}

    @property
    def is_known(self) -> bool:
        """The rest may be asked only then."""
        return self._line.is_known

    def observe(self, rows: int, seconds: float, now: float) -> None:
        if self._line.is_known:
            seconds = min(seconds, _MOST_SURPRISE * self.mean(rows))
        self._line.observe(rows, seconds)
        seen, mean, last = self._sizes.get(rows, (0, seconds, now))
        if now - last > _KEEP_SECONDS:
            seen, mean = 0, seconds
        self._sizes[rows] = seen + 1, mean + max(_WEIGHT, 1 / (seen + 1)) * (seconds - mean), now

    def forget(self, now: float) -> None:
        """Sizes that have not been seen for long."""
        self._sizes = {rows: each for rows, each in self._sizes.items() if now - each[2] <= _KEEP_SECONDS}

    def mean(self, rows: int) -> float:
        seen, mean, _ = self._sizes.get(rows, (0, 0.0, 0.0))
        return mean if seen >= _ENOUGH else self._line.mean(rows)

    def each(self) -> float:
        """What a row adds to others, as a rule."""
        return self._line.mean(2) - self._line.mean(1)
