"""Tensors of an `in_loop` model: copies of inputs for the model, and outputs without a copy where that is safe.

Flow: requests → [loop tensors] → the model's tensors; its arrays → [loop tensors] → responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import Any, TypeAlias
from weakref import getweakrefcount

import numpy as np
from numpy.typing import NDArray

from backends.python.worker.trioton_worker.frames import DATATYPE_BYTES
from backends.python.worker.trioton_worker.schemas import Schema, SchemaTensor
from backends.python.worker.trioton_worker.tensors import Tensor as ModelTensor
from backends.python.worker.trioton_worker.tensors import encoded_tensor
from protocol.errors import Internal
from protocol.messages import InferenceRequest, Tensor, flat
from protocol.tensors.shared_tensor import SharedTensor

# Inputs up to this size that several requests have lie side by side; each larger one has memory of its own, so that a
# model that keeps one keeps no others.
_SMALL = 1 << 16
_new = ModelTensor.__new__
# An output whose data is to be set, and the model's array.
LargeOutput: TypeAlias = tuple[Tensor, NDArray[Any]]


def inputs_of(run: Sequence[InferenceRequest], schema: Schema) -> Iterable[list[ModelTensor]]:
    """The inputs of each request, in memory of their own: a model may write to them, and keep them."""
    if len(run) == 1:
        alone: list[ModelTensor] = []
        for tensor, given in zip(schema.tensors, run[0].inputs, strict=True):
            alone.append(_alone(tensor, given))
        return [alone]
    if not schema.tensors:
        return [[] for _ in run]
    columns = ([request.inputs[place] for request in run] for place in range(len(schema.tensors)))
    return map(list, zip(*map(_column, schema.tensors, columns), strict=True))


def _column(tensor: SchemaTensor, given: Sequence[Tensor]) -> list[ModelTensor]:
    """One input of several requests."""
    if tensor.number == DATATYPE_BYTES or tensor.size > _SMALL:
        return [_alone(tensor, each) for each in given]
    memory = bytearray().join([each.data for each in given])
    if len(memory) != tensor.size * len(given):
        raise _wrong_size()
    name, number, shape = tensor.name, tensor.number, tensor.shape
    made: list[ModelTensor] = []
    for array in tensor.arrays(memory, -tensor.start, len(given), tensor.size):
        each = _new(ModelTensor)  # as `viewed_tensor`, whose call would cost as much as all of this
        each._name = name
        each._number = number
        each._shape = shape
        each._encoded = None
        each._array = array
        made.append(each)
    return made


def _alone(tensor: SchemaTensor, given: Tensor) -> ModelTensor:
    if tensor.number == DATATYPE_BYTES:
        return encoded_tensor(tensor.name, tensor.shape, flat(given.data))
    memory: bytearray | NDArray[np.uint8]
    if isinstance(given, SharedTensor):
        memory = np.empty(given.byte_size, np.uint8)
        given.read_into(memory.data)
    else:
        memory = bytearray(given.data)
    if len(memory) != tensor.size:
        raise _wrong_size()
    return tensor.view(memory)


def _wrong_size() -> Internal:
    return Internal("a tensor has not as many bytes as its datatype and shape need")


def settle(large: Sequence[LargeOutput]) -> None:
    """Set the data: the array's own memory where nobody else has the array, or a copy."""
    for (tensor, array), count in zip(large, _references(large), strict=True):
        if count <= _ALONE and not getweakrefcount(array) and _is_own(array):
            tensor.data = array.reshape(-1).view(np.uint8).data
        else:
            tensor.data = array.tobytes()


def _is_own(array: NDArray[Any]) -> bool:
    """Whether its memory is nobody else's, which has only the array."""
    base = array.base
    if isinstance(base, np.ndarray):
        is_memory = base.base is None and not getweakrefcount(base)
    else:
        is_memory = isinstance(base, bytearray)
    del base
    return array.base is None or (is_memory and _base_references(array) <= _BASE_ALONE)


def _references(large: Sequence[tuple[object, object]]) -> list[int]:
    return [getrefcount(array) for _, array in large]


def _base_references(array: NDArray[Any]) -> int:
    return getrefcount(array.base)


# What they count of an array that nobody else has, and of its memory.
[_ALONE] = _references([(None, np.empty(1))])
_BASE_ALONE = _base_references(np.ndarray((1,), np.uint8, bytearray(1)))
