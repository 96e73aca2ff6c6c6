"""Inputs that are made: random by a seed, or zeros; of fixed shapes, or of shapes drawn from a range."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from protocol.datatypes import DataType
from protocol.messages import Tensor, encode_bytes_elements
from trioton.perf.caller import DataError
from trioton.perf.data.dataset import MAX_BYTES, Dataset, Step
from trioton.perf.data.inputs import GivenShape, ModelSlots, TensorSlot, check_size

# Below this every embedding has entries.
LARGEST_INTEGER = 9
_CHARACTERS = np.frombuffer((string.ascii_letters + string.digits).encode(), np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """How inputs are made. `count` different requests, of fewer where they are large."""

    is_zero: bool = False
    seed: int = 0
    count: int = 16
    string_length: int = 128
    string_data: str | None = None

    def dataset(self, slots: ModelSlots, shapes: Sequence[GivenShape] = ()) -> Dataset:
        """Values of required inputs, the same for the same seed.

        Raises:
            DataError: an input whose shape varies was given none, or one that does not fit.
        """
        wanted = [slot for slot in slots.inputs if not slot.is_optional]
        for slot in wanted:
            if slot.is_shape_tensor:
                raise DataError(f"input '{slot.name}' is a shape tensor, whose values cannot be made, only given")
        by_name = shapes_by_name(slots, shapes)
        has_one = self.is_zero and all(shape.fixed is not None for shape in by_name.values())
        steps: list[Step] = []
        size = 0
        for number in range(1 if has_one else self.count):
            drawn = random.Random(f"{self.seed}/{number}")
            step = Step(tensors={slot.name: self._tensor(slot, by_name.get(slot.name), drawn) for slot in wanted})
            size += step.byte_size
            if steps and size > MAX_BYTES:
                break
            steps.append(step)
        return Dataset((tuple(steps),), is_generated=True)

    def _tensor(self, slot: TensorSlot, given: GivenShape | None, drawn: random.Random) -> Tensor:
        shape = _shape(slot, given, drawn)
        check_size(slot, shape)
        generator = np.random.default_rng(drawn.getrandbits(64))
        return Tensor(slot.name, slot.datatype, shape, self._elements(slot.datatype, math.prod(shape), generator))

    def _elements(self, datatype: DataType, count: int, generator: np.random.Generator) -> bytes:
        if datatype is DataType.BYTES:
            return self._texts(count, generator)
        if self.is_zero:
            return bytes(count * datatype.itemsize)
        if datatype is DataType.BOOL:
            return generator.integers(0, 2, count, dtype=np.uint8).tobytes()
        if np.issubdtype(datatype.dtype, np.integer):
            return generator.integers(0, LARGEST_INTEGER, count, endpoint=True).astype(datatype.dtype).tobytes()
        return generator.standard_normal(count, dtype=np.float32).astype(datatype.dtype).tobytes()

    def _texts(self, count: int, generator: np.random.Generator) -> bytes:
        if self.string_data is not None:
            return encode_bytes_elements([self.string_data] * count)
        if self.is_zero:
            return encode_bytes_elements([b""] * count)
        texts = generator.choice(_CHARACTERS, (count, self.string_length))
        return encode_bytes_elements([row.tobytes() for row in texts])


def shapes_by_name(slots: ModelSlots, shapes: Sequence[GivenShape]) -> Mapping[str, GivenShape]:
    """The given shapes, each of which fits an input.

    Raises:
        DataError: one does not, or there is no such input.
    """
    by_name = {shape.name: shape for shape in shapes}
    for name, shape in by_name.items():
        slot = slots.input(name)
        fits = len(shape.sizes) == len(slot.dims) and all(
            dim == -1 or least == greatest == dim for dim, (least, greatest) in zip(slot.dims, shape.sizes, strict=True)
        )
        if not fits:
            raise DataError(
                f"--shape {shape}: input '{name}' of model '{slots.model}' expects {list(slot.dims)} "
                "(without the batch dimension)"
            )
    return by_name


def _shape(slot: TensorSlot, given: GivenShape | None, drawn: random.Random) -> tuple[int, ...]:
    if given is not None:
        return tuple(drawn.randint(least, greatest) for least, greatest in given.sizes)
    if not slot.is_fixed:
        example = ",".join(str(dim) if dim >= 0 else "16" for dim in slot.dims)
        raise DataError(
            f"input '{slot.name}' has variable dims {list(slot.dims)}: give its shape, such as "
            f"--shape {slot.name}:{example}"
        )
    return slot.dims
