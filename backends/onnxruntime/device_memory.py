"""Device memory of a session: allocation, OrtValues over it, and copies.

The same code serves the host and a CUDA device, which has not been seen running.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as library
from onnxruntime.capi.onnxruntime_inference_collection import OrtDevice

CPU = "cpu"
CUDA = "cuda"

_UINT8 = 2  # TensorProto.UINT8


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """So many bytes of memory from an address on. `owner` is the library's value that keeps them."""

    address: int
    byte_size: int
    owner: Any

    def part(self, offset: int, byte_size: int) -> Piece:
        return Piece(self.address + offset, byte_size, self.owner)


class DeviceMemory:
    """The memory of one device as one session sees it; for the instance's thread alone, but what it gives may be
    dropped anywhere."""

    def __init__(self, session: Any, *, kind: str = CPU, id: int = 0) -> None:
        self.kind = kind
        self.id = id
        self.is_host = kind == CPU  # the library copies nothing within the host
        self._session = session
        self._output_name = session.get_outputs()[0].name
        self.device = OrtDevice.make(kind, id)._get_c_device()

    def allocate(self, byte_size: int) -> Piece:
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type([max(byte_size, 1)], np.uint8, self.kind, self.id)
        return Piece(value.data_ptr(), max(byte_size, 1), value)

    def view(self, piece: Piece, element_type: int, shape: Sequence[int]) -> Any:
        """The library's value over the beginning of a piece, which must outlive it. `element_type` is ONNX's number."""
        # Binding is the library's only way to a value over memory that is there already.
        binding = self._session.io_binding()
        binding.bind_output(self._output_name, self.kind, self.id, element_type, list(shape), piece.address)
        return binding.get_outputs()[0]

    def unallocated(self, kind: str) -> Any:
        """In the place of an output for which the library is to find memory itself."""
        binding = self._session.io_binding()
        binding.bind_output(self._output_name, kind, self.id if kind == self.kind else 0)
        return binding.get_outputs()[0]

    def copy(self, pairs: Sequence[tuple[Piece, Piece]]) -> None:
        """Copy pieces of this device to others of it, each as long as the first of a pair."""
        pairs = [pair for pair in pairs if pair[0].byte_size]
        if self.is_host:
            for source, target in pairs:
                ctypes.memmove(target.address, source.address, source.byte_size)
        elif pairs:
            onnxruntime.copy_tensors(
                [self._bytes(source) for source, _ in pairs],
                [self._bytes(target.part(0, source.byte_size)) for source, target in pairs],
            )

    def write(self, array: NDArray[Any], target: Piece) -> None:
        """Copy an array of the host, which is C-contiguous, to a piece of this device."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if self.is_host:
            ctypes.memmove(target.address, data.ctypes.data, data.nbytes)
        elif data.nbytes:
            source = onnxruntime.OrtValue.ortvalue_from_numpy(data)
            onnxruntime.copy_tensors([source], [self._bytes(target.part(0, data.nbytes))])

    def read(self, piece: Piece) -> memoryview:
        """The bytes of a piece, copied to the host."""
        data = np.empty(piece.byte_size, dtype=np.uint8)
        if self.is_host:
            ctypes.memmove(data.ctypes.data, piece.address, piece.byte_size)
        elif piece.byte_size:
            onnxruntime.copy_tensors([self._bytes(piece)], [onnxruntime.OrtValue.ortvalue_from_numpy(data)])
        return data.data

    def run(
        self, feeds: dict[str, Any], fetches: dict[str, Any], run_options: Any, *, on_host: frozenset[str]
    ) -> dict[str, Any]:
        """Run the session. Inputs are values on any device; an output is a value over the memory that it is to be
        written to, or None for one that the library allocates, on this device or `on_host`. Its exceptions pass."""
        values = library.OrtValueVector()
        for feed in feeds.values():
            values.push_back(feed._ortvalue)
        wanted = library.OrtValueVector()
        devices = []
        for name, fetch in fetches.items():
            kind = CPU if name in on_host else self.kind
            wanted.push_back((self.unallocated(kind) if fetch is None else fetch)._ortvalue)
            devices.append(_HOST if kind == CPU else self.device)
        # This call keeps the kind of an error, which a run with IOBinding loses.
        self._session.run_with_ortvaluevector(run_options, list(feeds), values, list(fetches), wanted, devices)
        # By index: iterating over the vector takes as long as a small model.
        return {name: onnxruntime.OrtValue(wanted[index]) for index, name in enumerate(fetches)}

    def _bytes(self, piece: Piece) -> Any:
        return self.view(piece, _UINT8, [piece.byte_size])


_HOST = OrtDevice.make(CPU, 0)._get_c_device()


def piece_of(value: Any, byte_size: int) -> Piece:
    """The memory of a value that the library has allocated."""
    return Piece(value.data_ptr(), byte_size, value)


def byte_size(shape: Sequence[int], itemsize: int) -> int:
    return math.prod(shape) * itemsize
