"""Quota: what a key may use, in all and of single models. An immutable value, read from an auth keys file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from protocol.quotas.meters import Bucket, Meter, Places, Rate


class Unit(StrEnum):
    """What is limited, by its name in the file.

    The cost of a request is known when it comes for REQUESTS and CONCURRENT_REQUESTS; for the others it is charged when
    it is known, and what was admitted may then be owed.
    """

    REQUESTS = "requests"
    TOKENS = "tokens"
    COMPUTE_SECONDS = "compute_seconds"
    BYTES = "bytes"
    CONCURRENT_REQUESTS = "concurrent_requests"


class Limit(msgspec.Struct, frozen=True):
    """One limit; `model` is empty where it is for all models together."""

    unit: Unit
    amount: Rate | int
    model: str = ""

    def meter(self) -> Meter:
        """A new one, of which nothing is used."""
        return Places(self.amount) if isinstance(self.amount, int) else Bucket(self.amount)

    @property
    def name(self) -> str:
        """Its name among the limits of a quota."""
        return f"{self.unit}:{self.model}" if self.model else self.unit.value

    def __str__(self) -> str:
        """For a person."""
        amount, model = self.amount, f" to model '{self.model}'" if self.model else ""
        if isinstance(amount, int):
            return f"{amount} requests{model} at once"
        unit = self.unit.replace("_", " ")
        return f"{amount.limit:g} {unit}{model} in {amount.seconds:g} s"


class Quota:
    """A limit of a model takes the place of that for all models, for requests to that model.

    Attributes:
        early: the limits that hold whatever the model is.
        late: by the names of models with limits of their own, those that hold beside the early ones.
    """

    __slots__ = ("_by_place", "_others", "early", "late", "name")

    def __init__(
        self,
        name: str,
        limits: Mapping[Unit, Rate | int],
        models: Mapping[str, Mapping[Unit, Rate | int]],
    ) -> None:
        self.name = name
        depends = {unit for own in models.values() for unit in own}
        self.early = tuple(Limit(unit, amount) for unit, amount in limits.items() if unit not in depends)
        shared = {unit: Limit(unit, amount) for unit, amount in limits.items() if unit in depends}
        self._others = tuple(shared.values())
        self.late = {
            model: tuple({**shared, **{unit: Limit(unit, amount, model) for unit, amount in own.items()}}.values())
            for model, own in models.items()
        }
        found = (*self.early, *self._others, *(limit for own in self.late.values() for limit in own))
        self._by_place = {(limit.unit, limit.model): limit for limit in found}

    def late_limits(self, model: str) -> tuple[Limit, ...]:
        """The limits that hold for this model and not for every other one."""
        return self.late.get(model, self._others)

    def limit(self, unit: Unit, model: str) -> Limit | None:
        """The one of this unit and model, which is empty as in `Limit`."""
        return self._by_place.get((unit, model))

    def limits(self) -> set[Limit]:
        """All of them."""
        return set(self._by_place.values())
