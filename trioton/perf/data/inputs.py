"""Inputs of a model as data has to fit them: datatypes and dims without the batch dimension, and given shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from trioton.perf.caller import DataError, ModelDescription

BY_CONFIGURED_NAME = {datatype.value: datatype for datatype in BY_PROTOCOL_NAME.values()}
# More bytes than any model's input; a slip in `--shape` must not take the machine's memory.
MAX_TENSOR_BYTES = 1 << 32


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """An input or output that data may be for. `dims` are those of one row, -1 for one that varies."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    is_optional: bool = False
    is_shape_tensor: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether all dims are known."""
        return all(dim >= 0 for dim in self.dims)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether the input may have this shape."""
        return len(shape) == len(self.dims) and all(
            dim in (-1, size) for dim, size in zip(self.dims, shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ModelSlots:
    """The tensors of a model; `is_batching` says whether requests have a batch dimension before the dims."""

    model: str
    inputs: tuple[TensorSlot, ...]
    outputs: tuple[TensorSlot, ...]
    is_batching: bool

    def input(self, name: str) -> TensorSlot:
        """Raises DataError: there is none of this name."""
        return _named(self.inputs, name, f"model '{self.model}' has no input '{name}'")

    def output(self, name: str) -> TensorSlot:
        """Raises DataError: there is none of this name."""
        return _named(self.outputs, name, f"model '{self.model}' has no output '{name}'")


@dataclass(frozen=True, slots=True)
class GivenShape:
    """`--shape`: sizes for the dims of an input, each from a least to a greatest one."""

    name: str
    sizes: tuple[tuple[int, int], ...]

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape, unless some size is one of several."""
        if any(least != greatest for least, greatest in self.sizes):
            return None
        return tuple(least for least, _ in self.sizes)

    def __str__(self) -> str:
        shown = (str(least) if least == greatest else f"{least}-{greatest}" for least, greatest in self.sizes)
        return f"{self.name}:{','.join(shown)}"


def given_shape(text: str) -> GivenShape:
    """`<input>:<size>,<size>…`; a size may be `<least>-<greatest>`. Raises ValueError."""
    name, colon, sizes = text.rpartition(":")
    try:
        if not colon or not name:
            raise ValueError
        return GivenShape(name, tuple(_size(size) for size in sizes.split(",") if sizes))
    except ValueError:
        raise ValueError("expected <input>:<size>,<size>… with sizes such as 16 or 1-64") from None


def _size(text: str) -> tuple[int, int]:
    least, dash, greatest = text.partition("-")
    first = int(least)
    last = int(greatest) if dash else first
    if not 0 <= first <= last:
        raise ValueError
    return first, last


def slots_of(model: ModelDescription) -> ModelSlots:
    """From the configuration where the server tells it, which alone says what is optional; else from the metadata.

    Raises:
        DataError: a datatype that the protocol does not have.
    """
    if model.config.get("input"):
        inputs = tuple(_configured(entry) for entry in model.config["input"])
        outputs = tuple(_configured(entry) for entry in model.config.get("output") or ())
        return ModelSlots(model.name, inputs, outputs, model.max_batch_size > 0)
    skipped = 1 if model.max_batch_size > 0 else 0
    inputs, outputs = (
        tuple(TensorSlot(each.name, _datatype(each.name, each.datatype), tuple(each.shape[skipped:])) for each in side)
        for side in (model.inputs, model.outputs)
    )
    return ModelSlots(model.name, inputs, outputs, bool(skipped))


def check_size(slot: TensorSlot, shape: Sequence[int]) -> int:
    """The least number of bytes of an input of this shape. Raises DataError: it is more than any input has."""
    size = math.prod(shape) * (slot.datatype.itemsize or 4)
    if size > MAX_TENSOR_BYTES:
        raise DataError(
            f"input '{slot.name}' of datatype {slot.datatype.name} and shape {list(shape)} needs {size} bytes, "
            f"at most {MAX_TENSOR_BYTES} are allowed"
        )
    return size


def _configured(entry: Any) -> TensorSlot:
    name = str(entry["name"])
    dims = tuple(int(dim) for dim in entry.get("dims") or ())
    datatype = _datatype(name, str(entry.get("data_type", "")))
    return TensorSlot(name, datatype, dims, bool(entry.get("optional")), bool(entry.get("is_shape_tensor")))


def _datatype(name: str, text: str) -> DataType:
    """Of the protocol's name or the configuration's."""
    found = BY_PROTOCOL_NAME.get(text) or BY_CONFIGURED_NAME.get(text)
    if found is None:
        raise DataError(f"tensor '{name}' has the datatype '{text}', which the protocol does not have")
    return found


def _named(slots: Sequence[TensorSlot], name: str, text: str) -> TensorSlot:
    for slot in slots:
        if slot.name == name:
            return slot
    known = ", ".join(f"'{slot.name}'" for slot in slots) or "none"
    raise DataError(f"{text}; it has {known}")
