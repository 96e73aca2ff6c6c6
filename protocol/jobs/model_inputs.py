"""Model inputs: the tensors of a row's values, typed and shaped as the model's metadata says. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import InvalidArgument
from protocol.messages import Tensor, encode_bytes_elements


@dataclass(frozen=True, slots=True)
class ModelInput:
    """`shape` is that of a request, with -1 for what varies; `is_batched` where its first dimension is the batch."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    is_batched: bool

    def fit(self, own: Sequence[int]) -> tuple[int, ...]:
        """The shape of a tensor of one row whose value has the shape `own`: as it is, with a batch of one before it, or
        flat values in the only shape that holds them.

        Raises:
            InvalidArgument: there is none.
        """
        wanted = (1, *self.shape[1:]) if self.is_batched else self.shape
        for shape in (tuple(own), (1, *own)):
            if len(shape) == len(wanted) and all(want in (-1, is_) for want, is_ in zip(wanted, shape, strict=True)):
                return shape
        if self.is_batched and len(own) == len(self.shape) and _matches(self.shape[1:], own[1:]):
            return tuple(own)  # a row with a batch of its own
        count, known = math.prod(own), math.prod(size for size in wanted if size >= 0)
        free = wanted.count(-1)
        if len(own) <= 1 and (count == known if free == 0 else free == 1 and known and count % known == 0):
            return tuple(count // known if size < 0 else size for size in wanted)
        raise InvalidArgument(
            f"input '{self.name}': expected a value of shape {list(self.shape[1:] if self.is_batched else self.shape)}"
            f", got {list(own)}"
        )

    def tensor(self, value: Any) -> Tensor:
        """Of a value in an array file: a number, bytes, a text, or an array of them.

        Raises:
            InvalidArgument: it is of another datatype or shape, or out of range.
        """
        if self.datatype is DataType.BYTES:
            return self._texts(value)
        try:
            array = np.asarray(value)
        except ValueError:  # rows of several lengths
            raise InvalidArgument(
                f"input '{self.name}': expected a regular array, got rows of several lengths"
            ) from None
        shape = self.fit(array.shape)
        return Tensor(self.name, self.datatype, shape, self._cast(array).data)

    def _texts(self, value: Any) -> Tensor:
        array = np.asarray(value, np.object_)
        elements = array.reshape(-1).tolist()
        if not all(isinstance(each, (str, bytes)) for each in elements):
            found = next(type(each).__name__ for each in elements if not isinstance(each, (str, bytes)))
            raise InvalidArgument(f"input '{self.name}' of datatype BYTES: expected texts or bytes, got {found}")
        shape = self.fit(array.shape)
        try:
            return Tensor(self.name, self.datatype, shape, encode_bytes_elements(elements))
        except UnicodeEncodeError:
            raise InvalidArgument(f"input '{self.name}': a text has half of a surrogate pair") from None

    def _cast(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        """The elements in the protocol's layout."""
        wanted, have = self.datatype.dtype, array.dtype
        if have.newbyteorder("=") != wanted:
            self._check_cast(array)
            with np.errstate(over="ignore", invalid="ignore"):  # past the range is infinity
                array = array.astype(wanted)
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        return np.ascontiguousarray(little).reshape(-1).view(np.uint8)

    def _check_cast(self, array: NDArray[Any]) -> None:
        name, kind = self.datatype.name, array.dtype.kind
        is_float, is_number = name.startswith(("FP", "BF")), kind in "iu"
        if is_float and (is_number or kind == "f" or array.dtype.name == "bfloat16"):
            return
        if is_float or name == "BOOL" or not is_number:
            raise InvalidArgument(f"input '{self.name}': expected elements of datatype {name}, got {array.dtype}")
        bounds = np.iinfo(self.datatype.dtype)
        if array.size and (int(array.min()) < bounds.min or int(array.max()) > bounds.max):
            raise InvalidArgument(
                f"input '{self.name}': a value is out of range of datatype {name}, expected {bounds.min} to "
                f"{bounds.max}"
            )


def _matches(wanted: Sequence[int], own: Sequence[int]) -> bool:
    return all(want in (-1, is_) for want, is_ in zip(wanted, own, strict=True))


class ModelInputs:
    """All inputs of a model, by name."""

    def __init__(self, model: str, inputs: Sequence[tuple[str, str, tuple[int, ...]]], *, is_batched: bool) -> None:
        """`inputs` are name, datatype and shape, as the metadata has them; `is_batched` where the model has a batch
        dimension, which is the first."""
        self.model = model
        self.is_batched = is_batched
        self.by_name = {
            name: ModelInput(name, BY_PROTOCOL_NAME[datatype], tuple(shape), is_batched)
            for name, datatype, shape in inputs
        }

    def named(self, name: str) -> ModelInput:
        """Raises InvalidArgument."""
        found = self.by_name.get(name)
        if found is None:
            raise InvalidArgument(
                f"model '{self.model}' has no input '{name:.128}', its inputs are {', '.join(self.by_name)}"
            )
        return found

    def only(self) -> ModelInput:
        """The input that whole files go to. Raises InvalidArgument where that is not said by the model."""
        found = [each for each in self.by_name.values() if each.datatype is DataType.BYTES]
        if len(self.by_name) != 1 or len(found) != 1:
            raise InvalidArgument(
                f"model '{self.model}' has the inputs "
                f"{', '.join(f'{each.name} ({each.datatype.name})' for each in self.by_name.values())}; "
                "files go whole to a model whose only input is of datatype BYTES"
            )
        return found[0]
