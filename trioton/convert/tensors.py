"""Descriptions of a model's tensors, shared by the command and the processes that it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
"""Tensors by their names."""


class TensorSpec(msgspec.Struct, frozen=True):
    """An input or output. `dims` are without the batch dimension; a text is the name of a size that varies, and sizes
    of one name are equal."""

    name: str
    datatype: str
    dims: tuple[int | str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """As a configuration has it, with -1 for what varies."""
        return tuple(dim if isinstance(dim, int) else -1 for dim in self.dims)


class Description(msgspec.Struct, frozen=True):
    """A source's inputs. `is_batching`: the first dimension of every tensor is the batch."""

    inputs: tuple[TensorSpec, ...]
    is_batching: bool

    @property
    def varying(self) -> tuple[str, ...]:
        """Names of the sizes that vary, in order."""
        return tuple(dict.fromkeys(dim for spec in self.inputs for dim in spec.dims if isinstance(dim, str)))


def observed_outputs(
    answers: Sequence[Mapping[str, Array]], datatypes: Mapping[str, str], *, is_batching: bool
) -> tuple[TensorSpec, ...]:
    """The outputs as they were seen: what differs between answers, besides the batch, varies."""
    first = answers[0]
    found = []
    for name in first:
        shapes = [np.shape(each[name])[1 if is_batching else 0 :] for each in answers]
        dims = tuple(
            sizes[0] if len(set(sizes)) == 1 else f"{name}_{axis}"
            for axis, sizes in enumerate(zip(*shapes, strict=True))
        )
        found.append(TensorSpec(name, datatypes[name], dims))
    return tuple(found)
