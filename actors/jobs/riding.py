"""Riding: how many requests of jobs live ones may take along to their model, from what that has cost them. Pure.

Some models run a full batch in the time of one request, others take as long for each. So what a round took in which one
went along is compared with those in which several did: what each has cost, and how long it would have been without any,
follows. Together they may cost a part of that. Where one costs more, none goes along; but where some go in any case, it
is looked whether that has changed.
"""

from __future__ import annotations

import math

from actors.jobs.pace import ROW_SECONDS, SHARE

# Of what live requests take, that those which go along may add to it in the model.
PART = 0.15
# What one costs is measured no better than that: a quick model takes one along in any case.
LEAST_SECONDS = ROW_SECONDS
# One round in so many is one to compare with.
_COMPARED = 16
_WEIGHT = 0.1


class Riding:
    """Of one model. A round is what starts with live requests at once."""

    __slots__ = ("_many", "_many_seconds", "_one_seconds", "_round")

    def __init__(self) -> None:
        self._round = 0
        self._one_seconds = 0.0
        self._many = 0.0
        self._many_seconds = 0.0

    def most(self) -> int:
        """How many may go with the next round."""
        if not self._one_seconds:
            return 1
        if not self._many:
            return 2
        each = max((self._many_seconds - self._one_seconds) / (self._many - 1), 0.0)
        alone = max(self._one_seconds - each, 0.0)
        if each > max(PART * alone, LEAST_SECONDS):
            return 0
        most = int(min(SHARE * alone / ROW_SECONDS, PART * alone / each if each else math.inf))
        if not self._round % _COMPARED:
            return 1 if most > 1 else 2
        return max(most, 1)

    def most_at_last(self) -> int:
        """How many go where some have to: enough to compare."""
        return 1 + self._round % 2

    def ended(self, count: int, seconds: float) -> None:
        """A round is answered with which so many went."""
        self._round += 1
        if count == 1:
            self._one_seconds += (_WEIGHT if self._one_seconds else 1.0) * (seconds - self._one_seconds)
        else:
            weight = _WEIGHT if self._many else 1.0
            self._many += weight * (count - self._many)
            self._many_seconds += weight * (seconds - self._many_seconds)
