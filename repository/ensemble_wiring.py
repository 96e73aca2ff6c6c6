"""The dataflow of an ensemble's steps: topological order, cycles, and steps that exclude each other.

Pure functions over tensor names; of the composing models only matters which inputs are optional. Used on an ensemble's
own configuration (`repository.validation_ensemble`) and again when its composing models are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from repository.ensemble_parameters import StepCondition, step_conditions
from repository.model_config import ModelConfig

# What must hold for a step to run: tensors with the value that they must have.
Guard: TypeAlias = frozenset[tuple[str, bool]]

NO_GUARD: Guard = frozenset()


@dataclass(frozen=True, slots=True)
class StepWiring:
    """`reads` are all ensemble tensors that a step waits for; without one of `requires` (some of them) it is skipped.
    `writes` may be a tensor of another step too, if the two exclude each other."""

    reads: tuple[str, ...]
    requires: frozenset[str]
    writes: tuple[str, ...]
    condition: StepCondition | None = None


def wire(config: ModelConfig, optional: Sequence[Collection[str]] = ()) -> tuple[StepWiring, ...]:
    """The steps of an ensemble. `optional` has each step's inputs that it can run without, where that is known.

    Raises:
        InvalidArgument: a condition that is none.
    """
    steps = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
    conditions = step_conditions(config)
    wired: list[StepWiring] = []
    for index, step in enumerate(steps):
        condition = conditions.get(index)
        needs = [] if condition is None else [condition.tensor]
        spare = optional[index] if optional else ()
        taken = sorted(step.input_map.items())  # a map of protobuf has no order of its own
        required = [tensor for name, tensor in taken if name not in spare]
        wired.append(
            StepWiring(
                reads=tuple(dict.fromkeys((*(tensor for _, tensor in taken), *needs))),
                requires=frozenset((*required, *needs)),
                writes=tuple(tensor for _, tensor in sorted(step.output_map.items())),
                condition=condition,
            )
        )
    return tuple(wired)


def running_order(steps: Sequence[StepWiring], inputs: Collection[str]) -> tuple[list[int], set[str]]:
    """The indexes of the steps that can run, in an order in which they can, and all tensors that then are written.

    A tensor of several steps is written when all of them are done.
    """
    missing_writers = Counter(tensor for step in steps for tensor in step.writes)
    readers: dict[str, list[int]] = {}
    missing = [0] * len(steps)  # of what each step reads
    written = set(inputs)
    for index, step in enumerate(steps):
        for tensor in step.reads:
            if tensor not in written:
                missing[index] += 1
                readers.setdefault(tensor, []).append(index)
    order: list[int] = []
    ready = [index for index, count in enumerate(missing) if not count]
    while ready:
        order += ready
        following: list[int] = []
        for tensor in [tensor for index in ready for tensor in steps[index].writes]:
            missing_writers[tensor] -= 1
            if missing_writers[tensor] or tensor in written:
                continue
            written.add(tensor)
            for reader in readers.get(tensor, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    following.append(reader)
        ready = sorted(following)
    return order, written


def find_cycle(steps: Sequence[StepWiring], order: Sequence[int]) -> list[tuple[int, str]]:
    """Steps that wait for each other in a cycle: each with a tensor that it reads and the next one writes, and the
    first comes after the last. `order` has those that can run. Empty if there is no cycle.
    """
    waiting = sorted(set(range(len(steps))) - set(order))
    writers: dict[str, list[int]] = {}
    for index in waiting:
        for tensor in dict.fromkeys(steps[index].writes):
            writers.setdefault(tensor, []).append(index)

    def needs(index: int) -> Iterator[tuple[str, int]]:
        return ((tensor, writer) for tensor in steps[index].reads for writer in writers.get(tensor, ()))

    visited: set[int] = set()
    for first in waiting:
        if first in visited:
            continue
        visited.add(first)
        # The way to a step, with the tensor that each reads of the next; and what is left of what each needs.
        path, read, left = [first], list[str](), [needs(first)]
        places = {first: 0}
        while path:
            for tensor, writer in left[-1]:
                if writer in places:
                    start = places[writer]
                    return list(zip(path[start:], [*read[start:], tensor], strict=True))
                if writer not in visited:
                    visited.add(writer)
                    places[writer] = len(path)
                    path.append(writer)
                    read.append(tensor)
                    left.append(needs(writer))
                    break
            else:
                left.pop()
                del places[path.pop()]
                if read:
                    read.pop()
    return []


def guards(steps: Sequence[StepWiring], order: Sequence[int]) -> dict[int, Guard]:
    """What must hold for each step to run: its own condition, and what its tensors' writers need."""
    of_tensors: dict[str, Guard] = {}
    of_steps: dict[int, Guard] = {}
    for index in order:
        step = steps[index]
        guard = NO_GUARD.union(*(of_tensors.get(tensor, NO_GUARD) for tensor in step.requires))
        if step.condition is not None:
            guard |= {(step.condition.tensor, not step.condition.is_negated)}
        of_steps[index] = guard
        for tensor in step.writes:
            # One of a tensor's writers is enough for it to be there, so what they have in common must hold.
            of_tensors[tensor] = of_tensors[tensor] & guard if tensor in of_tensors else guard
    return of_steps


def exclude_each_other(one: Guard, other: Guard) -> bool:
    """Whether two steps can never both run in one request."""
    return any((tensor, not value) in other for tensor, value in one)


def clashing_writer(steps: Sequence[StepWiring], of_steps: Mapping[int, Guard]) -> tuple[int, str] | None:
    """A step that writes a tensor which a step before it may have written already, and the tensor."""
    writers: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for tensor in step.writes:
            earlier = writers.setdefault(tensor, [])
            guard = of_steps.get(index, NO_GUARD)
            if not all(exclude_each_other(guard, of_steps.get(other, NO_GUARD)) for other in earlier):
                return index, tensor
            earlier.append(index)
    return None
