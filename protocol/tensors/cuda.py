"""CUDA device memory through cupy: synchronous copies between device and host.

cupy is imported with the first use and not before. Not seen running on a GPU: the tests stand host memory behind cupy's
names. Source: CUDA Runtime API, "Device Management" and "Memory Management".
"""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np

from protocol.errors import Unavailable
from protocol.messages import Buffer
from protocol.tensors.dlpack import DeviceType


def find_cupy() -> ModuleType | None:
    """cupy, where it is installed and can use a GPU. The first call may take seconds."""
    try:
        cupy = importlib.import_module("cupy")
        return cupy if cupy.cuda.runtime.getDeviceCount() else None
    except (ImportError, RuntimeError):  # not installed; no driver or no device
        return None


class CudaMemory:
    """`protocol.tensors.device_tensor.DeviceMemory` of one GPU. `place` is what its errors call it."""

    def __init__(self, cupy: ModuleType, device_id: int, place: str = "") -> None:
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self.device_id = device_id
        self._place = place or f"GPU {device_id}"

    @property
    def device(self) -> tuple[int, int]:
        return DeviceType.CUDA, self.device_id

    def read(self, address: int, byte_size: int) -> Buffer:
        try:
            array = np.empty(byte_size, np.uint8)
            if byte_size:
                with self._cupy.cuda.Device(self.device_id):
                    self._runtime.memcpy(array.ctypes.data, address, byte_size, self._runtime.memcpyDeviceToHost)
        except (RuntimeError, MemoryError) as error:  # cupy's CUDARuntimeError is a RuntimeError
            raise Unavailable(f"unable to read {byte_size} bytes of {self._place}: {error}") from None
        return array.data.toreadonly()

    def write(self, address: int, data: Buffer) -> None:
        array = np.frombuffer(data, np.uint8)
        self._copy(address, array.ctypes.data, array.size, self._runtime.memcpyHostToDevice)

    def copy(self, target: int, source: int, byte_size: int) -> None:
        """From any GPU."""
        self._copy(target, source, byte_size, self._runtime.memcpyDefault)

    def _copy(self, target: int, source: int, byte_size: int, kind: int) -> None:
        if not byte_size:
            return
        try:
            with self._cupy.cuda.Device(self.device_id):
                self._runtime.memcpy(target, source, byte_size, kind)
                # From pageable memory, and within devices, a copy returns before its last part has arrived.
                self._runtime.streamSynchronize(0)
        except RuntimeError as error:
            raise Unavailable(f"unable to write {byte_size} bytes to {self._place}: {error}") from None
