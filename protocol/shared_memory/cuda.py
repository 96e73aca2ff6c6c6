"""CUDA shared memory: device memory of clients, opened by its IPC handle through cupy, copied to the host and back.

cupy is imported with the first registration and not before. A handle is only good in another process than its maker's.
Not seen running on a GPU: the tests stand host memory behind cupy's names. Source: Triton's CUDA shared memory
extension; CUDA Runtime API, "Device Management" and "Memory Management".
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from types import ModuleType

import numpy as np

from protocol.errors import Internal, InvalidArgument, Unavailable
from protocol.messages import Buffer

HANDLE_SIZE = 64  # sizeof(cudaIpcMemHandle_t)


class DeviceMemory:
    """An opened handle. Reading waits for the device, and so does writing: the client sees what was written."""

    def __init__(self, cupy: ModuleType, pointer: int, *, region: str, device_id: int) -> None:
        self._cupy = cupy
        self._pointer = pointer
        self._region = region
        self._device_id = device_id

    def read(self, position: int, size: int) -> Buffer:
        """Raises Unavailable: the device or the host's memory refuses."""
        try:
            array = np.empty(size, np.uint8)
            if size:
                runtime = self._cupy.cuda.runtime
                with self._cupy.cuda.Device(self._device_id):
                    runtime.memcpy(array.ctypes.data, self._pointer + position, size, runtime.memcpyDeviceToHost)
        except (RuntimeError, MemoryError) as error:  # cupy's CUDARuntimeError is a RuntimeError
            raise Unavailable(
                f"unable to read {size} bytes of CUDA shared memory region '{self._region}': {error}"
            ) from None
        return array.data.toreadonly()

    def write(self, position: int, data: Buffer) -> None:
        """Raises Unavailable: the device refuses."""
        array = np.frombuffer(data, np.uint8)
        if not array.size:
            return
        try:
            runtime = self._cupy.cuda.runtime
            with self._cupy.cuda.Device(self._device_id):
                runtime.memcpy(self._pointer + position, array.ctypes.data, array.size, runtime.memcpyHostToDevice)
                # From pageable memory a copy returns before its last part has reached the device.
                runtime.streamSynchronize(0)
        except RuntimeError as error:
            raise Unavailable(
                f"unable to write {array.size} bytes to CUDA shared memory region '{self._region}': {error}"
            ) from None

    def close(self) -> None:
        """Raises Internal: the device refuses."""
        try:
            with self._cupy.cuda.Device(self._device_id):
                self._cupy.cuda.runtime.ipcCloseMemHandle(self._pointer)
        except RuntimeError as error:
            raise Internal(f"unable to close CUDA shared memory region '{self._region}': {error}") from None


def open_device_memory(region: str, raw_handle: bytes, device_id: int, byte_size: int) -> DeviceMemory:
    """Open a handle of `byte_size` bytes on a device. The first one may take seconds (cupy, a context on the device).

    Raises:
        InvalidArgument: no GPU or no cupy, no handle, one that the device does not know, or less memory than said.
    """
    cupy = _import_cupy(region)
    if len(raw_handle) != HANDLE_SIZE:
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    try:
        with cupy.cuda.Device(device_id):
            pointer: int = cupy.cuda.runtime.ipcOpenMemHandle(bytes(raw_handle))
    except (RuntimeError, OverflowError) as error:
        raise InvalidArgument(
            f"failed to register CUDA shared memory region '{region}': failed to open CUDA IPC handle: {error}"
        ) from None
    memory = DeviceMemory(cupy, pointer, region=region, device_id=device_id)
    if not _holds(memory, byte_size):
        with suppress(Internal):
            memory.close()
        raise InvalidArgument(f"failed to register shared memory region '{region}': invalid args")
    return memory


def _holds(memory: DeviceMemory, byte_size: int) -> bool:
    """A handle does not tell its size; the last byte is either there or not."""
    try:
        return byte_size > 0 and len(memory.read(byte_size - 1, 1)) == 1
    except (Unavailable, OverflowError):
        return False


def _import_cupy(region: str) -> ModuleType:
    try:
        cupy = importlib.import_module("cupy")
        device_count: int = cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError):  # not installed; no driver or no device
        device_count = 0
    if not device_count:
        raise InvalidArgument(f"failed to register CUDA shared memory region: '{region}', GPUs not supported")
    return cupy
