"""GPUs of this machine, split between replicas: which of them each one sees. Pure, but for `visible_gpus`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from backends.devices.machine import VISIBLE_DEVICES, compute_capabilities


class NoGpus(Exception):
    """There are not as many as are wanted; the text says how many there are."""


def gpus_per_replica(text: str) -> float:
    """A value of `--gpus-per-replica`. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (0 < value <= 1024 and (value.is_integer() or (value < 1 and abs(1 / value - round(1 / value)) < 0.02))):
        raise ValueError("expected a whole number from 1 on, or 1 / n: 0.5 for two replicas on each GPU")
    return value


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES may name here: its own words, or the numbers of all GPUs that the driver knows."""
    given = environment.get(VISIBLE_DEVICES)
    if given is None:
        return tuple(map(str, range(len(compute_capabilities()))))
    found: list[str] = []
    for word in map(str.strip, given.split(",")):
        if not word or word == "-1":  # CUDA, too, stops there
            break
        found.append(word)
    return tuple(found)


class GpuShares:
    """Which replica has which GPUs."""

    def __init__(self, gpus: Sequence[str], per_replica: float) -> None:
        """`per_replica` as `gpus_per_replica` reads it."""
        self._gpus = tuple(gpus)
        self._count = max(1, round(per_replica))
        self._replicas_each = 1 if per_replica >= 1 else round(1 / per_replica)
        self._held: dict[str, tuple[str, ...]] = {}

    @property
    def most_replicas(self) -> int:
        """How many have GPUs at the same time."""
        return len(self._gpus) // self._count * self._replicas_each

    def check(self, replicas: int) -> None:
        """Raises NoGpus: they are too few for so many replicas."""
        if replicas > self.most_replicas:
            raise NoGpus(
                f"{replicas} replicas with {self._wanted} each need more GPUs than there are, expected "
                f"{self._needed(replicas)} at least, got {self._there}"
            )

    def take(self, replica: str) -> str:
        """Its CUDA_VISIBLE_DEVICES, until `give_back`: the GPUs that fewest others have. Raises NoGpus."""
        used = Counter(gpu for held in self._held.values() for gpu in held)
        free = sorted((gpu for gpu in self._gpus if used[gpu] < self._replicas_each), key=lambda gpu: used[gpu])
        if len(free) < self._count:
            raise NoGpus(f"no GPU is free for it: {len(self._held)} replicas have {self._wanted} each of {self._there}")
        self._held[replica] = tuple(free[: self._count])
        return ",".join(self._held[replica])

    def give_back(self, replica: str) -> None:
        """Nothing, where it has none."""
        self._held.pop(replica, None)

    def _needed(self, replicas: int) -> int:
        return -(-replicas // self._replicas_each) * self._count

    @property
    def _wanted(self) -> str:
        if self._replicas_each == 1:
            return "one GPU" if self._count == 1 else f"{self._count} GPUs"
        return f"1/{self._replicas_each} of a GPU"

    @property
    def _there(self) -> str:
        return f"{len(self._gpus)} ({', '.join(self._gpus)})" if self._gpus else "none"
