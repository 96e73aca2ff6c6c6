"""Device stream of one model instance: asynchronous copies to and from its device.

The instance owns it and uses it in its own thread. What is enqueued on it runs beside the work of other instances;
`synchronize` is the one place that waits, and until then it keeps all that its copies read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from backends.devices.pinned import PinnedPool
from backends.devices.runtime import DeviceRuntime
from protocol.messages import Buffer, Tensor
from protocol.tensors.device_tensor import DeviceBuffer, DeviceMemory, DeviceTensor

# How libraries may expect the beginning of a tensor to be aligned, in bytes; whatever is allocated is.
ALIGNMENT = 256


class DeviceStream:
    """Raises as `backends.devices.runtime.DeviceRuntime`. `pins_inputs` and `pins_outputs`: whether copies from and to
    the host go through the pool of pinned memory."""

    def __init__(
        self,
        runtime: DeviceRuntime,
        pinned: PinnedPool,
        *,
        priority: int = 0,
        pins_inputs: bool = True,
        pins_outputs: bool = True,
    ) -> None:
        self._runtime = runtime
        self._pinned = pinned
        self._priority = priority
        self._pins_inputs = pins_inputs
        self._pins_outputs = pins_outputs
        self._stream = runtime.new_stream(priority)
        self._held: list[object] = []

    def sibling(self) -> DeviceStream:
        """Another one of the same instance, whose work goes on beside."""
        return DeviceStream(
            self._runtime,
            self._pinned,
            priority=self._priority,
            pins_inputs=self._pins_inputs,
            pins_outputs=self._pins_outputs,
        )

    @property
    def number(self) -> int:
        """The `cudaStream_t`."""
        return self._runtime.stream_number(self._stream)

    @property
    def device(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""
        return self._runtime.memory.device

    @property
    def memory(self) -> DeviceMemory:
        return self._runtime.memory

    def current(self) -> AbstractContextManager[None]:
        """Makes device and stream the running thread's current ones."""
        return self._runtime.current(self._stream)

    def allocate(self, byte_size: int) -> DeviceBuffer:
        return self._runtime.allocate(byte_size, self._stream)

    def hold(self, *kept: object) -> None:
        """Keep something until the stream has been waited for."""
        self._held += kept

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on this device, and can be used as it is."""
        return (
            isinstance(tensor, DeviceTensor)
            and tensor.buffer.device == self.device
            and tensor.buffer.address % ALIGNMENT == 0
        )

    def joined(self, tensors: Sequence[Tensor]) -> DeviceBuffer:
        """The elements of tensors one after the other: enqueues the copies, one for all that come from the host.

        A single tensor that is here already is not copied.
        """
        if len(tensors) == 1 and self.has(tensors[0]):
            assert isinstance(tensors[0], DeviceTensor)
            self.hold(tensors[0].buffer)
            return tensors[0].buffer
        target = self.allocate(sum(tensor.byte_size for tensor in tensors))
        self.hold(target)
        offset = 0
        run: list[Buffer] = []
        run_size = 0
        for tensor in tensors:
            if isinstance(tensor, DeviceTensor):
                self._write(target.part(offset, run_size), run)
                offset, run, run_size = offset + run_size, [], 0
                self.copy(target.part(offset, tensor.byte_size), tensor.buffer)
                offset += tensor.byte_size
            else:
                run.append(tensor.data)
                run_size += tensor.byte_size
        self._write(target.part(offset, run_size), run)
        return target

    def to_device(self, array: NDArray[np.generic]) -> DeviceBuffer:
        """An array of the host, which is C-contiguous."""
        target = self.allocate(array.nbytes)
        self.hold(target)
        self._write(target, [array.reshape(-1).view(np.uint8).data])
        return target

    def copy(self, target: DeviceBuffer, source: DeviceBuffer) -> None:
        """Enqueue a copy to this device, of the source's size, from any."""
        self.hold(target, source)
        if source.byte_size:
            self._runtime.copy(target, source, self._stream)

    def clear(self, target: DeviceBuffer) -> None:
        """Enqueue zeros."""
        self.hold(target)
        self._runtime.clear(target, self._stream)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What `work` enqueues, as a graph that each call of what is returned enqueues again. Its memory, and what the
        graph stands for, must outlive it.

        Raises:
            Unavailable: the device refuses, or has no graphs.
        """
        self.synchronize()
        return self._runtime.capture(work, self._stream)

    def _write(self, target: DeviceBuffer, parts: Sequence[Buffer]) -> None:
        if not target.byte_size:
            return
        staged = self._pinned.take(target.byte_size) if self._pins_inputs else None
        if staged is None and len(parts) > 1:
            staged = np.empty(target.byte_size, np.uint8)
        if staged is None:
            staged = np.frombuffer(parts[0], np.uint8)
        else:
            offset = 0
            for part in parts:
                data = np.frombuffer(part, np.uint8)
                staged[offset : offset + data.size] = data
                offset += data.size
        self.hold(staged)
        self._runtime.to_device(target, staged, self._stream)

    def to_host(self, buffers: Iterable[DeviceBuffer]) -> list[memoryview]:
        """The bytes of buffers on the host; waits for all that is enqueued. They may be sent as they are: pinned memory
        goes back to its pool when they are dropped."""
        found: list[memoryview] = []
        for buffer in buffers:
            array = self._pinned.take(buffer.byte_size) if self._pins_outputs else None
            if array is None:
                array = np.empty(buffer.byte_size, np.uint8)
            if buffer.byte_size:
                self.hold(buffer, array)
                self._runtime.to_host(array, buffer, self._stream)
            found.append(array.data)
        self.synchronize()
        return found

    def synchronize(self) -> None:
        """Wait until all that is enqueued has ended, also where it has failed."""
        try:
            self._runtime.synchronize(self._stream)
        finally:
            self._held.clear()
