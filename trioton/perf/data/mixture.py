"""Mixtures: a share of calls that their client gives up, and priorities and timeouts of requests."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trioton.perf.caller import Call, Encode, Payload

# Of the calls that are prepared where shares are to be kept: each is one per mille.
_PARTS = 1000


@dataclass(frozen=True, slots=True)
class Weighted:
    """A value that a share of the calls has; shares add up to 1."""

    value: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What differs between calls of one payload.

    Attributes:
        cancel_share: the share of calls that are given up, `cancel_after` seconds after they were sent.
        priorities: the levels of requests, and how many have each.
        timeout_microseconds: of every request, 0 for none.
        seed: for the order of what differs.
    """

    cancel_share: float = 0.0
    cancel_after: float = 0.0
    priorities: tuple[Weighted, ...] = ()
    timeout_microseconds: int = 0
    seed: int = 0

    def calls(self, payloads: Sequence[Payload], encode: Encode, *, keeps_responses: bool = False) -> list[Call]:
        """The calls of all payloads, in their order. Where calls differ, so many that every share is kept to one per
        mille; those of one payload and priority share what was encoded. A call's key is its payload."""
        is_mixed = bool(self.cancel_share or len(self.priorities) > 1)
        count = len(payloads) * (math.ceil(_PARTS / len(payloads)) if is_mixed else 1) if payloads else 0
        drawn = random.Random(self.seed)
        levels = _spread(count, self.priorities, drawn)
        given_up = _spread(count, (Weighted(1, self.cancel_share), Weighted(0, 1 - self.cancel_share)), drawn)
        encoded: dict[tuple[int, int], object] = {}
        calls = []
        for number in range(count):
            index, level = number % len(payloads), levels[number]
            if (index, level) not in encoded:
                encoded[index, level] = encode(self.payload(payloads[index], level))
            cancel = self.cancel_after if given_up[number] else None
            payload = payloads[index]
            calls.append(Call(encoded[index, level], payload.inferences, cancel, keeps_responses, payload))
        return calls

    def draw(self, drawn: random.Random) -> tuple[int, float | None]:
        """A priority, and after how long one call is given up, for calls that cannot be prepared together."""
        levels, shares = [each.value for each in self.priorities], [each.share for each in self.priorities]
        level = drawn.choices(levels, shares)[0] if levels else 0
        return level, self.cancel_after if self.cancel_share and drawn.random() < self.cancel_share else None

    def payload(self, payload: Payload, level: int) -> Payload:
        """With what all of its calls have."""
        if not level and not self.timeout_microseconds:
            return payload
        return replace(payload, priority=level, timeout_microseconds=self.timeout_microseconds)


def _spread(count: int, weighted: Sequence[Weighted], drawn: random.Random) -> list[int]:
    """Values for so many calls, as many of each as its share says, in random order."""
    if len(weighted) < 2:
        return [weighted[0].value if weighted else 0] * count
    values: list[int] = []
    total = 0.0
    for each in weighted:
        total += each.share
        values.extend([each.value] * (round(total * count) - len(values)))
    values.extend([weighted[-1].value] * (count - len(values)))
    drawn.shuffle(values)
    return values
