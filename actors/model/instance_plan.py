"""Instance plan: which instances stay, are added or removed when the instance groups of a loaded model change.

Consulted by the model. A pure function.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from backends.interface import InstanceSpec


class InstancePlan(NamedTuple):
    """`added` are to be loaded under these names; `removed` are left over."""

    kept: list[InstanceSpec]
    added: list[InstanceSpec]
    removed: list[InstanceSpec]

    @property
    def specs(self) -> list[InstanceSpec]:
        return [*self.kept, *self.added]


def plan_instances(
    present: Sequence[InstanceSpec], wanted: Sequence[InstanceSpec], taken: Collection[str]
) -> InstancePlan:
    """Instances that are alike but for their names stand for each other. New ones are of the same load as the present
    ones, and get their own names unless those are `taken`."""
    plan = InstancePlan([], [], list(present))
    names = set(taken)
    for spec in wanted:
        same = next((each for each in plan.removed if _is_alike(each, spec)), None)
        if same is not None:
            plan.removed.remove(same)
            plan.kept.append(same)
            continue
        name = next(name for name in _names(spec.name) if name not in names)
        names.add(name)
        plan.added.append(replace(spec, name=name, source=present[0].source))
    return plan


def _is_alike(one: InstanceSpec, other: InstanceSpec) -> bool:
    return replace(one, name="", source=other.source) == replace(other, name="")


def _names(name: str) -> Iterator[str]:
    """Names for an instance, the given one first."""
    yield name
    group = name.rpartition("_")[0]
    yield from (f"{group}_{number}" for number in itertools.count())
