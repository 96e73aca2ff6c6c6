"""Batch assembly: concatenates requests to arrays, and splits arrays into responses; independent of any framework.

`BatchLayout` is made once per instance from the configuration; `backends.array_backend` calls it in the instance's
thread, between taking a batch and answering it. Numbers are copied only where several requests are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backends.batch_tensors import BatchInputs, BatchOutputs
from protocol.datatypes import DataType, from_numpy_dtype
from protocol.errors import Internal, InvalidArgument, Unsupported
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from repository.model_config import Dims, ModelConfig, ModelOutput
from repository.sequence_tensors import hidden_outputs

Arrays: TypeAlias = dict[str, NDArray[Any]]

# From so many bytes on, where an array lies counts more than what it takes to put it there.
_LARGE = 32768


@dataclass(frozen=True, slots=True)
class Reshape:
    """Between the configuration's `dims` and `reshape.shape`; the n-th -1 of one is the n-th -1 of the other."""

    source: Dims
    target: Dims

    def apply(self, array: NDArray[Any], leading: int) -> NDArray[Any]:
        """The array with every dimension after the first `leading` ones changed from `source` to `target`."""
        return array.reshape(self.shape(array.shape, leading))

    def shape(self, shape: tuple[int, ...], leading: int) -> tuple[int, ...]:
        """What becomes of such a shape."""
        variable = iter([size for size, dim in zip(shape[leading:], self.source, strict=True) if dim == -1])
        return shape[:leading] + tuple(next(variable) if dim == -1 else dim for dim in self.target)


class BatchLayout:
    """What one model's tensors look like on both sides: in requests and responses, and in the model's own arrays.

    With `text_strings` the elements of BYTES inputs become `str`, else they stay `bytes`. Large joined arrays begin at
    a multiple of `alignment` bytes; 0 for wherever numpy puts them.
    """

    def __init__(
        self, config: ModelConfig, *, version: int, instance: str, text_strings: bool = False, alignment: int = 0
    ) -> None:
        self.config = config
        self._alignment = alignment
        self._version = version
        self._instance = instance
        self._text_strings = text_strings
        self._leading = 1 if config.is_batching else 0
        # The server itself wants the outputs that a sequence's next state is made of.
        self._outputs = (*config.output, *hidden_outputs(config))
        # Their values are shapes: they have no batch dimension, and all requests of a batch have the same.
        self._shape_tensors = frozenset(
            {entry.name for entry in config.input if entry.is_shape_tensor}
            | {entry.name for entry in config.output if entry.is_shape_tensor}
        )
        # Inputs that requests of different shapes share; the model gets their elements in one dimension.
        self._ragged = frozenset(entry.name for entry in config.input if entry.allow_ragged_batch)
        self._batch_inputs = BatchInputs(config) if config.batch_input else None
        self._batch_outputs = BatchOutputs(config) if config.batch_output else None
        # State inputs that the instance joins itself.
        self._held: frozenset[str] = frozenset()
        self._input_reshapes = {
            entry.name: Reshape(entry.dims, entry.reshape.shape) for entry in config.input if entry.reshape is not None
        }

    def leave_out(self, inputs: frozenset[str], outputs: frozenset[str]) -> None:
        """Have nothing to do with some states: the instance holds them itself."""
        self._held = inputs
        self._outputs = tuple(entry for entry in self._outputs if entry.name not in outputs)

    def arrays(self, request: InferenceRequest) -> Arrays:
        """One request's inputs in the shapes that the model takes, with its own rows; views but for BYTES.

        Raises:
            InvalidArgument: a BYTES tensor is broken, or is not UTF-8 where the model takes text.
        """
        found: Arrays = {}
        for tensor in request.inputs:
            if tensor.name in self._held:
                continue
            array = tensor.as_numpy()
            if self._text_strings and tensor.datatype is DataType.BYTES:
                array = self._decoded(tensor.name, array)
            reshape = self._input_reshapes.get(tensor.name)
            found[tensor.name] = array if reshape is None else reshape.apply(array, self._leading)
        return found

    def _decoded(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        decoded = np.empty(array.size, dtype=np.object_)
        for index, element in enumerate(array.reshape(-1).tolist()):
            try:
                decoded[index] = element.decode()
            except UnicodeDecodeError as error:
                raise InvalidArgument(
                    f"model '{self.config.name}' takes text as input '{name}', but element {index} "
                    f"({len(element)} bytes) is not valid UTF-8 at byte {error.start}"
                ) from None
        return decoded.reshape(array.shape)

    def rows(self, arrays: Sequence[Arrays]) -> list[int]:
        """How many rows of the batch each request brings; the first input counts. Without batching always 1.

        Raises:
            Internal: more rows than `max_batch_size`; the scheduler made too large a batch.
        """
        if not self.config.is_batching:
            return [1] * len(arrays)
        rows = [
            next((array.shape[0] for name, array in found.items() if name not in self._shape_tensors), 1)
            for found in arrays
        ]
        if sum(rows) > self.config.max_batch_size:
            raise Internal(
                f"batch size {sum(rows)} for '{self._instance}', max allowed is {self.config.max_batch_size}"
            )
        return rows

    def joined(self, arrays: Sequence[Arrays], missing: int = 0) -> Arrays:
        """The requests' arrays one after the other along the batch dimension; a single request's stay views.

        So many `missing` rows repeat the last one: values that the model can take for sure. Ragged ones are joined
        element by element, to the shape [elements of all requests].
        """
        if self._ragged:
            arrays = [
                {name: array.reshape(-1) if name in self._ragged else array for name, array in found.items()}
                for found in arrays
            ]
        if len(arrays) == 1 and not missing:
            # Received bodies put tensors at any offset; frameworks may assume that elements are aligned.
            return {name: array if array.flags.aligned else array.copy() for name, array in arrays[0].items()}
        return {
            name: array
            if name in self._shape_tensors
            else self._concatenated([found[name] for found in arrays], missing)
            for name, array in arrays[0].items()
        }

    def _concatenated(self, parts: list[NDArray[Any]], missing: int) -> NDArray[Any]:
        if missing:
            parts += [parts[-1][-1:]] * missing
        first = parts[0]
        size = sum(part.nbytes for part in parts) if self._alignment else 0
        if size < _LARGE or first.dtype.hasobject:
            return np.concatenate(parts)
        memory = np.empty(size + self._alignment, np.uint8)
        start = -memory.ctypes.data % self._alignment
        shape = (sum(len(part) for part in parts), *first.shape[1:])
        found = memory[start : start + size].view(first.dtype).reshape(shape)
        return np.concatenate(parts, out=found)

    def complete(self) -> None:
        """Wait until what was joined is there, for any thread."""

    def batch_inputs(self, requests: Sequence[InferenceRequest]) -> Arrays:
        """What the model gets beside the requests' own inputs (`batch_input`)."""
        return {} if self._batch_inputs is None else self._batch_inputs.arrays(requests)

    def responses(
        self, outputs: Mapping[str, NDArray[Any]], requests: Sequence[InferenceRequest], rows: Sequence[int]
    ) -> list[InferenceResponse]:
        """One response per request with its rows of each output that it wants; views of the arrays but for BYTES.

        Raises:
            Internal: an output is missing, or has another datatype or shape than the configuration says.
            Unsupported: an output has too few rows.
        """
        responses = [
            InferenceResponse(self.config.name, self._version, outputs=[], id=request.id) for request in requests
        ]
        for entry in self._outputs:
            wanted = [not request.requested_outputs or entry.name in request.requested_outputs for request in requests]
            if not any(wanted):
                continue
            parts = self._parts(entry, outputs, requests, rows)
            for response, is_wanted, tensor in zip(responses, wanted, parts, strict=True):
                if is_wanted:
                    response.outputs.append(tensor)
        return responses

    def _parts(
        self,
        entry: ModelOutput,
        outputs: Mapping[str, NDArray[Any]],
        requests: Sequence[InferenceRequest],
        rows: Sequence[int],
    ) -> list[Tensor]:
        """An output's part for each request."""
        if self._batch_outputs is not None and entry.name in self._batch_outputs.names:
            array = self._of_datatype(entry, outputs)
            return self._batch_outputs.scatter(entry, array, requests)
        if entry.name in self._shape_tensors:
            return [Tensor.from_numpy(entry.name, self._checked(entry, outputs, 0))] * len(requests)
        return self._split(entry, self._checked(entry, outputs, sum(rows)), rows)

    def _of_datatype(self, entry: ModelOutput, outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The model's array for one output, which is there and has the right datatype."""
        place = f"model '{self.config.name}', output '{entry.name}'"
        if entry.name not in outputs:
            given = ", ".join(sorted(outputs)) or "none"
            raise Internal(f"{place}: the model gave no such output, but: {given}")
        array = np.asarray(outputs[entry.name])
        datatype = from_numpy_dtype(array.dtype)
        if datatype is not entry.data_type:
            received = f"numpy dtype {array.dtype}" if datatype is None else datatype.value
            raise Internal(f"{place}: the configuration expects {entry.data_type.value}, the model gave {received}")
        return array

    def _checked(self, entry: ModelOutput, outputs: Mapping[str, NDArray[Any]], rows: int) -> NDArray[Any]:
        """The model's array for one output, C-contiguous and in the response's shape."""
        array = self._of_datatype(entry, outputs)
        self._check_shape(entry, array.shape, rows)
        if array.dtype.kind not in "OSU":
            array = np.asarray(array, dtype=entry.data_type.dtype.newbyteorder("<"), order="C")
        if entry.reshape is None:
            return array
        return Reshape(entry.reshape.shape, entry.dims).apply(array, self._leading_of(entry))

    def _leading_of(self, entry: ModelOutput) -> int:
        return 0 if entry.name in self._shape_tensors else self._leading

    def _check_shape(self, entry: ModelOutput, shape: tuple[int, ...], rows: int) -> None:
        dims = entry.dims if entry.reshape is None else entry.reshape.shape
        leading = self._leading_of(entry)
        if len(shape) != leading + len(dims) or not _matches(shape[leading:], dims):
            expected = [-1] * leading + list(dims)
            raise Internal(
                f"model '{self.config.name}', output '{entry.name}': the configuration expects shape {expected}, the "
                f"model gave {list(shape)}"
            )
        if leading and shape[0] < rows:
            raise Unsupported(
                f"failed to split the output tensor '{entry.name}' in responses: expected batch size of at least "
                f"{rows} in model output, got {shape[0]}"
            )

    def _split(self, entry: ModelOutput, array: NDArray[Any], rows: Sequence[int]) -> list[Tensor]:
        name, datatype = entry.name, entry.data_type
        if not self.config.is_batching:
            return [Tensor.from_numpy(name, array)]
        inner = array.shape[1:]
        ends = list(accumulate(rows))
        if datatype is DataType.BYTES:
            texts = [array[end - count : end] for end, count in zip(ends, rows, strict=True)]
            return [
                Tensor(name, datatype, text.shape, encode_bytes_elements(text.reshape(-1).tolist())) for text in texts
            ]
        # One flat view, cut per request: cheaper than an array per request.
        flat = array.reshape(-1).view(np.uint8).data
        width = flat.nbytes // array.shape[0] if array.shape[0] else 0
        return [
            Tensor(name, datatype, (count, *inner), flat[(end - count) * width : end * width])
            for end, count in zip(ends, rows, strict=True)
        ]


def _matches(shape: Sequence[int], dims: Dims) -> bool:
    return all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
