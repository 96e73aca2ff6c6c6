"""Batch assembly on a device: inputs already there are used in place, the rest is copied.

In the place of `backends.array_batch.BatchLayout`, with device tensors for arrays of numbers. Strings and the values of
shape tensors are the host's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from backends.array_batch import Arrays, BatchLayout, Reshape
from backends.devices.stream import DeviceStream
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.device_tensor import DeviceTensor, device_tensor
from repository.model_config import ModelConfig, ModelOutput


class DeviceBatchLayout(BatchLayout):
    """The arrays that `run` gets and gives are device tensors, but for strings and shape tensors; those given may be
    arrays, too.

    `joined` enqueues its copies on the stream. `responses` waits for all that is enqueued.
    """

    def __init__(
        self, config: ModelConfig, stream: DeviceStream, *, version: int, instance: str, text_strings: bool = False
    ) -> None:
        super().__init__(config, version=version, instance=instance, text_strings=text_strings)
        self._stream = stream
        batching = config.sequence_batching
        states = () if batching is None else batching.state
        # The server reads states itself, and what is cut by a `batch_output` is cut on the host.
        self._on_host = {state.output_name for state in states}
        if self._batch_outputs is not None:
            self._on_host |= self._batch_outputs.names
        self._copied: dict[str, NDArray[Any]] = {}  # those of a batch's outputs that somebody wants on the host

    def arrays(self, request: InferenceRequest) -> Arrays:
        """One request's inputs: strings and shape tensors as arrays, other numbers as tensors in the model's shapes,
        wherever they are."""
        numbers: dict[str, Any] = {}
        on_host: list[Tensor] = []
        for tensor in request.inputs:
            if tensor.datatype is DataType.BYTES or tensor.name in self._shape_tensors:
                on_host.append(tensor)
                continue
            reshape = self._input_reshapes.get(tensor.name)
            shape = tensor.shape if reshape is None else reshape.shape(tensor.shape, self._leading)
            numbers[tensor.name] = tensor.under(tensor.name, shape)
        if on_host:
            numbers.update(super().arrays(InferenceRequest(request.model_name, on_host)))
        return numbers

    def joined(self, arrays: Sequence[Arrays], missing: int = 0) -> Arrays:
        on_host = [{name: each for name, each in found.items() if isinstance(each, np.ndarray)} for found in arrays]
        joined: dict[str, Any] = super().joined(on_host, missing) if on_host[0] else {}
        for name in arrays[0]:
            if name not in joined:
                joined[name] = self._join(name, [cast(Tensor, found[name]) for found in arrays], missing)
        return joined

    def _join(self, name: str, parts: list[Tensor], missing: int) -> DeviceTensor:
        first, last = parts[0], parts[-1]
        if name in self._ragged:
            shape: tuple[int, ...] = (sum(part.element_count for part in parts),)
        elif len(parts) == 1 and not missing:
            shape = first.shape
        else:
            rows, inner = sum(part.shape[0] for part in parts), first.shape[1:]
            shape = (rows + missing, *inner)
            if missing:
                parts += [_last_row(last)] * missing
        return device_tensor(name, first.datatype, shape, self._stream.joined(parts))

    def complete(self) -> None:
        self._stream.synchronize()

    def batch_inputs(self, requests: Sequence[InferenceRequest]) -> Arrays:
        made: dict[str, Any] = {}
        for name, array in super().batch_inputs(requests).items():
            tensor = Tensor.from_numpy(name, array)
            made[name] = device_tensor(name, tensor.datatype, tensor.shape, self._stream.to_device(array))
        return made

    def responses(
        self, outputs: Mapping[str, NDArray[Any]], requests: Sequence[InferenceRequest], rows: Sequence[int]
    ) -> list[InferenceResponse]:
        """As its base's, with device tensors where a request's `device_outputs` lets an output stay."""
        wanted: dict[str, DeviceTensor] = {}
        for entry in self._outputs:
            value: Any = outputs.get(entry.name)
            if isinstance(value, DeviceTensor) and any(self._goes_to_host(entry.name, each) for each in requests):
                wanted[entry.name] = value
        found = self._stream.to_host([tensor.buffer for tensor in wanted.values()])
        try:
            for (name, tensor), data in zip(wanted.items(), found, strict=True):
                self._copied[name] = Tensor(name, tensor.datatype, tensor.shape, data).as_numpy()
            return super().responses(outputs, requests, rows)
        finally:
            self._copied.clear()

    def _goes_to_host(self, name: str, request: InferenceRequest) -> bool:
        if request.requested_outputs and name not in request.requested_outputs:
            return False
        return name not in request.device_outputs or name in self._on_host

    def _parts(
        self,
        entry: ModelOutput,
        outputs: Mapping[str, NDArray[Any]],
        requests: Sequence[InferenceRequest],
        rows: Sequence[int],
    ) -> list[Tensor]:
        value: Any = outputs.get(entry.name)
        if not isinstance(value, DeviceTensor):
            return super()._parts(entry, outputs, requests, rows)
        copied: list[Tensor] = []
        if entry.name in self._copied:
            copied = super()._parts(entry, self._copied, requests, rows)
            if entry.name in self._on_host:
                return copied
        here = self._cut(entry, value, rows)
        return [
            copied[index] if copied and self._goes_to_host(entry.name, request) else here[index]
            for index, request in enumerate(requests)
        ]

    def _cut(self, entry: ModelOutput, tensor: DeviceTensor, rows: Sequence[int]) -> list[Tensor]:
        """Views of an output, one for each request."""
        if tensor.datatype is not entry.data_type:
            raise Internal(
                f"model '{self.config.name}', output '{entry.name}': the configuration expects "
                f"{entry.data_type.value}, the model gave {tensor.datatype.value}"
            )
        self._check_shape(entry, tensor.shape, sum(rows))
        shape = tensor.shape
        if entry.reshape is not None:
            shape = Reshape(entry.reshape.shape, entry.dims).shape(shape, self._leading)
        if not self.config.is_batching:
            return [tensor.under(entry.name, shape)]
        width = tensor.byte_size // shape[0] if shape[0] else 0
        parts: list[Tensor] = []
        for count, end in zip(rows, accumulate(rows), strict=True):
            buffer = tensor.buffer.part((end - count) * width, count * width)
            parts.append(device_tensor(entry.name, tensor.datatype, (count, *shape[1:]), buffer))
        return parts


def reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    """What `run` gets or gives, an array or a tensor, in another shape."""
    return value.under(value.name, shape) if isinstance(value, Tensor) else value.reshape(shape)


def _last_row(tensor: Tensor) -> Tensor:
    rows, *inner = tensor.shape
    width = tensor.byte_size // rows
    if isinstance(tensor, DeviceTensor):
        buffer = tensor.buffer.part(width * (rows - 1), width)
        return device_tensor(tensor.name, tensor.datatype, (1, *inner), buffer)
    data = memoryview(tensor.data).cast("B")[width * (rows - 1) :]
    return Tensor(tensor.name, tensor.datatype, (1, *inner), data)
