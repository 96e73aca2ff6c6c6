"""Traffic split policy: chooses the target of a request by weights. Plain and synchronous."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate

from repository.traffic_split import TrafficSplitConfig


class SplitPolicy:
    """The rules.

    1. Requests without a key are spread so that after any number of them each target has had its share, to within one
       request for each target; the same weights give the same order each time.
    2. A request with a key goes where the key's digest falls on the line of all weights. Equal keys so meet the same
       target as long as the weights stay; where they change, no more keys move than the change of the borders takes.
       Requests with keys do not count for rule 1.
    3. A shadow gets every n-th request, as its percentage says.
    """

    def __init__(self, split: TrafficSplitConfig) -> None:
        self._weights = [target.weight for target in split.targets]
        self._total = sum(self._weights)
        self._borders = list(accumulate(self._weights))
        self._credits = [0] * len(self._weights)
        self._percents = [shadow.percent for shadow in split.shadows]
        self._due = [0.0] * len(self._percents)

    def choose(self, key: str | None = None) -> int:
        """The number of the target."""
        if key is not None:
            digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            point = int.from_bytes(digest, "little") * self._total >> 64
            return next(number for number, border in enumerate(self._borders) if point < border)
        for number, weight in enumerate(self._weights):
            self._credits[number] += weight
        chosen = max(range(len(self._credits)), key=self._credits.__getitem__)
        self._credits[chosen] -= self._total
        return chosen

    def choose_shadows(self) -> Sequence[int]:
        """The numbers of the shadows that get a copy."""
        chosen: list[int] = []
        for number, percent in enumerate(self._percents):
            self._due[number] += percent
            if self._due[number] >= 100:
                self._due[number] -= 100
                chosen.append(number)
        return chosen
