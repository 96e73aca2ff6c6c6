"""CUDA shared memory: clients' device memory, opened by its IPC handle through cupy.

cupy is imported with the first registration and not before. A handle is only good in another process than its maker's.
Source: Triton's CUDA shared memory extension; CUDA Runtime API, "Device Management" and "Memory Management".
"""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType

from protocol.errors import Internal, InvalidArgument, Unavailable
from protocol.messages import Buffer
from protocol.tensors.cuda import CudaMemory, find_cupy

HANDLE_SIZE = 64  # sizeof(cudaIpcMemHandle_t)


class ClientDeviceMemory:
    """An opened handle: `address` on its `device`. Reading waits for the device, and so does writing: the client sees
    what was written."""

    def __init__(self, cupy: ModuleType, address: int, *, region: str, device_id: int) -> None:
        self._cupy = cupy
        self._region = region
        self.address = address
        self.device = CudaMemory(cupy, device_id, f"CUDA shared memory region '{region}'")

    def read(self, position: int, size: int) -> Buffer:
        """Raises Unavailable: the device or the host's memory refuses."""
        return self.device.read(self.address + position, size)

    def write(self, position: int, data: Buffer) -> None:
        """Raises Unavailable: the device refuses."""
        self.device.write(self.address + position, data)

    def close(self) -> None:
        """Raises Internal: the device refuses."""
        try:
            with self._cupy.cuda.Device(self.device.device_id):
                self._cupy.cuda.runtime.ipcCloseMemHandle(self.address)
        except RuntimeError as error:
            raise Internal(f"unable to close CUDA shared memory region '{self._region}': {error}") from None


def open_device_memory(region: str, raw_handle: bytes, device_id: int, byte_size: int) -> ClientDeviceMemory:
    """Open a handle of `byte_size` bytes on a device. The first one may take seconds (cupy, a context on the device).

    Raises:
        InvalidArgument: no GPU or no cupy, no handle, one that the device does not know, or less memory than said.
    """
    cupy = find_cupy()
    if cupy is None:
        raise InvalidArgument(f"failed to register CUDA shared memory region: '{region}', GPUs not supported")
    if len(raw_handle) != HANDLE_SIZE:
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    try:
        with cupy.cuda.Device(device_id):
            address: int = cupy.cuda.runtime.ipcOpenMemHandle(bytes(raw_handle))
    except (RuntimeError, OverflowError) as error:
        raise InvalidArgument(
            f"failed to register CUDA shared memory region '{region}': failed to open CUDA IPC handle: {error}"
        ) from None
    memory = ClientDeviceMemory(cupy, address, region=region, device_id=device_id)
    if not _holds(memory, byte_size):
        with suppress(Internal):
            memory.close()
        raise InvalidArgument(f"failed to register shared memory region '{region}': invalid args")
    return memory


def _holds(memory: ClientDeviceMemory, byte_size: int) -> bool:
    """A handle does not tell its size; the last byte is either there or not."""
    try:
        return byte_size > 0 and len(memory.read(byte_size - 1, 1)) == 1
    except (Unavailable, OverflowError):
        return False
