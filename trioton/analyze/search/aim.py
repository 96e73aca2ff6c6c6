"""Aims: what makes one candidate better than another."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trioton.analyze.search.candidates import Measured, Record
from trioton.analyze.search.curves import crossing, keeps, level


class Objective(enum.StrEnum):
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Aim:
    """The greatest rate whose latency keeps `bound`; or at one `rate` the least latency, or the least memory of those
    that keep the bound. Seconds; the bound is infinite where none is given.

    Attributes:
        percent: which percentile the latency is; None for the mean.
        rate: of the latter two; 0 where it is to be taken from what the default can do.
    """

    objective: Objective
    bound: float = math.inf
    percent: float | None = 99.0
    rate: float = 0.0

    @property
    def has_fixed_rate(self) -> bool:
        return self.objective is not Objective.THROUGHPUT

    def value(self, record: Record, rate: float = 0.0) -> float:
        """How good a candidate is, more is better; minus infinity for one that is out of the question. With a fixed
        rate that is `rate`."""
        if record.failure or not record.measured:
            return -math.inf
        if not self.has_fixed_rate:
            return crossing(record.measured, self.bound).rate
        at_rate = [each for each in record.measured if each.trial.rate == rate]
        if not at_rate or not self._keeps(at_rate, rate):
            return -math.inf
        return -self.cost(at_rate)

    def cost(self, measured: Sequence[Measured]) -> float:
        """The logarithm of what is to be low, over measurements at one rate: latency or memory."""
        logs = []
        for each in measured:
            if self.objective is Objective.MEMORY:
                logs.append(math.log(max(1, each.outcome.memory)))
            elif math.isfinite(self.bound):
                logs.append(math.log(level(each.outcome, each.trial.rate, self.bound)))
            else:
                logs.append(math.log(max(1e-9, each.outcome.latency or 1e3)))
        return math.fsum(logs) / len(logs)

    def _keeps(self, measured: Sequence[Measured], rate: float) -> bool:
        good = sum(keeps(each.outcome, rate, self.bound) for each in measured)
        return 2 * good > len(measured)
