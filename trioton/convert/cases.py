"""Chooses what every candidate is asked: batches of all sizes, dimensions of several sizes, rows alone and joined."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import numpy as np

from trioton.convert.tensors import Array, Arrays, Description

# Rows that are compared alone, too.
_MOST_ALONE = 8
_ENOUGH_TO_SPLIT = 16


class Way(enum.StrEnum):
    """How the rows of a case are sent."""

    TOGETHER = "together"
    ALONE = "alone"  # one request after the other
    JOINED = "joined"  # a request for each row, all at once, which the server batches


class Case:
    """One question: tensors with the batch dimension where the model has one."""

    __slots__ = ("inputs", "name", "rows", "way")

    def __init__(self, name: str, inputs: Arrays, rows: int, way: Way = Way.TOGETHER) -> None:
        self.name, self.inputs, self.rows, self.way = name, inputs, rows, way

    @property
    def asks(self) -> str:
        """The name of the case with the same question whose answer of the reference counts."""
        return self.name.partition(",")[0]


def batch_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, an odd one, and the largest, as far as there are."""
    odd = next((size for size in (5, 3) if size < largest), 1)
    return tuple(sorted({size for size in (1, 2, odd, largest) if size <= largest}))


def plan_cases(samples: Sequence[Arrays], description: Description, largest: int) -> list[Case]:
    """The cases for samples, which are rows without the batch dimension and of any shapes that the model allows.

    Every sample is in one of them at least. Where all samples have one size of a dimension that varies, some are cut
    or repeated to others.
    """
    cases = []
    groups = _by_shape(samples)
    for number, group in enumerate(groups):
        cases += _cases_of_shape(group, description, largest, "" if number == 0 else f" of shape {number + 1}")
    for symbol in description.varying:
        seen = {_size_of(sample, description, symbol) for sample in samples}
        if len(seen) > 1:
            continue
        base = seen.pop()
        for size in _other_sizes(base):
            rows = [_resized(sample, description, symbol, size) for sample in groups[0][:2]]
            count = min(len(rows), largest) if description.is_batching else 1
            cases.append(Case(f"{symbol} {size}", _stacked(rows[:count], description), count))
    return cases


def single_cases(rows: Sequence[Arrays], description: Description) -> list[Case]:
    """Each row as a question of its own."""
    return [Case(f"row {number}", _stacked([row], description), 1) for number, row in enumerate(rows, start=1)]


def calibration_split(rows: list[Arrays]) -> tuple[list[Arrays], list[Arrays]]:
    """Rows to calibrate with and rows to judge by: others, where there are enough."""
    return (rows[::2], rows[1::2]) if len(rows) >= _ENOUGH_TO_SPLIT else (rows, rows)


def _cases_of_shape(rows: Sequence[Arrays], description: Description, largest: int, suffix: str) -> list[Case]:
    if not description.is_batching:
        return [Case(f"sample {index + 1}{suffix}", dict(row), 1) for index, row in enumerate(rows)]
    cases, start = [], 0
    for size in batch_sizes(largest):
        cases.append(Case(f"batch {size}{suffix}", _stacked(_taken(rows, start, size), description), size))
        start += size
    last = cases[-1]
    count = min(_MOST_ALONE, last.rows)
    few = {name: array[:count] for name, array in last.inputs.items()}
    cases.append(Case(f"{last.name}, alone", few, count, Way.ALONE))
    cases.append(Case(f"{last.name}, joined", last.inputs, last.rows, Way.JOINED))
    while start < len(rows):  # those that no batch above had
        size = min(largest, len(rows) - start)
        cases.append(
            Case(f"rows {start + 1} to {start + size}{suffix}", _stacked(_taken(rows, start, size), description), size)
        )
        start += size
    return cases


def _by_shape(samples: Sequence[Arrays]) -> list[list[Arrays]]:
    groups: dict[tuple[tuple[str, tuple[int, ...]], ...], list[Arrays]] = {}
    for sample in samples:
        groups.setdefault(tuple((name, array.shape) for name, array in sorted(sample.items())), []).append(sample)
    return list(groups.values())


def _taken(rows: Sequence[Arrays], start: int, count: int) -> list[Arrays]:
    """So many from there on, beginning anew where there are no more."""
    return [rows[(start + offset) % len(rows)] for offset in range(count)]


def _stacked(rows: Sequence[Arrays], description: Description) -> Arrays:
    if not description.is_batching:
        return dict(rows[0])
    return {spec.name: np.stack([row[spec.name] for row in rows]) for spec in description.inputs}


def _size_of(sample: Mapping[str, Array], description: Description, symbol: str) -> int:
    return next(
        int(sample[spec.name].shape[axis])
        for spec in description.inputs
        for axis, dim in enumerate(spec.dims)
        if dim == symbol
    )


def _other_sizes(base: int) -> tuple[int, ...]:
    """A smaller one where there is, an odd one and a larger one."""
    sizes = {max(1, base // 2), base + 1, 2 * base + 1}
    return tuple(sorted(sizes - {base}))


def _resized(sample: Arrays, description: Description, symbol: str, size: int) -> Arrays:
    resized = dict(sample)
    for spec in description.inputs:
        for axis, dim in enumerate(spec.dims):
            if dim == symbol:
                array = resized[spec.name]
                indices = np.arange(size) % array.shape[axis]
                resized[spec.name] = np.ascontiguousarray(np.take(array, indices, axis=axis))
    return resized
