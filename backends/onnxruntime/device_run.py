"""Runs of a session with inputs and outputs on its device (I/O binding).

The same code serves the host, by which it is tested, and a CUDA device, which has not been seen running. Outputs that
are strings are the host's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backends.devices.stream import DeviceStream
from backends.onnxruntime.device_memory import CPU, CUDA, DeviceMemory, Piece, byte_size
from backends.onnxruntime.ort_values import to_array, to_value
from backends.onnxruntime.signature import ONNX_ELEMENT_TYPES
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor, device_tensor
from protocol.tensors.dlpack import DeviceType

_DATA_TYPES = {number: data_type for data_type, number in ONNX_ELEMENT_TYPES.items()}
_STRING = "tensor(string)"


class DeviceRun:
    """For the instance's thread alone. The session computes on the stream, so that it waits for the inputs' copies."""

    def __init__(self, session: Any, stream: DeviceStream, outputs: Sequence[str], run_options: Any) -> None:
        kind, number = stream.device
        self._memory = DeviceMemory(session, kind=CUDA if kind == DeviceType.CUDA else CPU, id=number)
        self._stream = stream
        self._outputs = outputs
        self._run_options = run_options
        strings = {arg.name for arg in session.get_outputs() if arg.type == _STRING}
        self._on_host = frozenset(name for name in outputs if name in strings)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, complete. What the library raises passes."""
        feeds = {name: self._value(value) for name, value in inputs.items()}
        values = self._memory.run(feeds, dict.fromkeys(self._outputs), self._run_options, on_host=self._on_host)
        self._stream.synchronize()
        return {
            name: to_array(value) if name in self._on_host else self._tensor(name, value)
            for name, value in values.items()
        }

    def _value(self, value: Any) -> Any:
        assert isinstance(value, DeviceTensor)  # models that take strings do not run so
        if not value.byte_size:  # nothing has no address
            return to_value(np.empty(value.shape, value.datatype.dtype))
        piece = Piece(value.buffer.address, value.byte_size, value.buffer.owner)
        return self._memory.view(piece, ONNX_ELEMENT_TYPES[value.datatype], value.shape)

    def _tensor(self, name: str, value: Any) -> DeviceTensor:
        data_type, shape = _DATA_TYPES[value.element_type()], tuple(value.shape())
        buffer = DeviceBuffer(self._stream.memory, value.data_ptr(), byte_size(shape, data_type.itemsize), value)
        return device_tensor(name, data_type, shape, buffer)
