"""Description of an engine as plain data: its tensors, and the shapes that its optimisation profiles allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.datatypes import DataType
from repository.model_config import Dims

LINEAR = "LINEAR"


@dataclass(frozen=True, slots=True)
class Range:
    """What one profile allows for a tensor's dimensions, or a shape tensor's values, and what it is best at."""

    minimum: Dims
    optimum: Dims
    maximum: Dims


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One tensor. `shape` holds the batch dimension, if the engine has one, and -1 where a size is open.

    A shape tensor's values are read or written on the host. Inputs have a range for each profile. `format` is
    TensorRT's name for how the elements lie in memory.
    """

    name: str
    data_type: DataType
    shape: Dims
    is_input: bool
    is_shape_tensor: bool = False
    format: str = LINEAR
    ranges: tuple[Range, ...] = ()

    @property
    def is_linear(self) -> bool:
        return self.format == LINEAR


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """Tensors in the engine's own order."""

    tensors: tuple[EngineTensor, ...]
    profile_count: int = 1

    @property
    def inputs(self) -> tuple[EngineTensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.is_input)

    @property
    def outputs(self) -> tuple[EngineTensor, ...]:
        return tuple(tensor for tensor in self.tensors if not tensor.is_input)

    @property
    def has_shape_tensors(self) -> bool:
        return any(tensor.is_shape_tensor for tensor in self.tensors)

    @property
    def is_dynamic(self) -> bool:
        """Whether shapes are open; the engine can then not be shared, for a profile serves one context at a time."""
        return self.has_shape_tensors or any(-1 in tensor.shape for tensor in self.tensors)

    @property
    def fixed_rows(self) -> int:
        """The only number of rows that it takes: the first dimension of every input and output. 0 if there is none."""
        first = {tensor.shape[:1] for tensor in self.tensors if not tensor.is_shape_tensor}
        if len(first) != 1:
            return 0
        (rows,) = first
        return rows[0] if rows and rows[0] > 0 else 0

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension of every tensor can be the batch."""
        if not any(tensor.is_input and not tensor.is_shape_tensor for tensor in self.tensors):
            return False
        if any(tensor.is_shape_tensor and (len(tensor.shape) != 1 or tensor.shape[0] == 1) for tensor in self.tensors):
            return False  # its first value would be the batch, and nothing would be left for a request to give
        return self.fixed_rows > 0 or all(
            tensor.shape[:1] == (-1,) for tensor in self.tensors if not tensor.is_shape_tensor
        )

    def most_rows(self, groups: Sequence[Sequence[int]]) -> int:
        """The largest batch that instances can take with any of the profiles of their group; 0 if it cannot batch."""
        if not self.can_batch:
            return 0
        return min(max(self._rows(profile) for profile in profiles) for profiles in groups)

    def _rows(self, profile: int) -> int:
        return min(
            tensor.ranges[profile].maximum[0] if tensor.ranges else tensor.shape[0]
            for tensor in self.inputs
            if not tensor.is_shape_tensor
        )
