"""The devices of one server: memory pools within the limits of its flags, and streams for its model instances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from backends.devices.cuda import CudaRuntime, pin
from backends.devices.pinned import DEFAULT_PINNED_BYTES, Pinned, PinnedPool
from backends.devices.runtime import DeviceRuntime
from backends.devices.stream import DeviceStream
from repository.model_config import ModelConfig

DEFAULT_POOL_BYTES = 64 << 20


class Devices:
    """`cuda_pool_bytes` is by device, `DEFAULT_POOL_BYTES` for others. Nothing is touched before it is used.
    `has_gpus` is for who shows the pools."""

    def __init__(
        self,
        *,
        pinned_bytes: int = DEFAULT_PINNED_BYTES,
        cuda_pool_bytes: Mapping[int, int] | None = None,
        has_peer_access: bool = True,
        new_runtime: Callable[[int, int, bool], DeviceRuntime] = CudaRuntime,
        pin: Callable[[int], Pinned] = pin,
    ) -> None:
        self.has_gpus = False
        self._has_peer_access = has_peer_access
        self.pinned = PinnedPool(pinned_bytes, pin)
        self._pool_bytes = cuda_pool_bytes or {}
        self._new_runtime = new_runtime
        self._runtimes: dict[int, DeviceRuntime] = {}
        self._lock = threading.Lock()

    def pool_bytes(self, device_id: int) -> int:
        """How much of a GPU's memory the server keeps for tensors."""
        return self._pool_bytes.get(device_id, DEFAULT_POOL_BYTES)

    def runtime(self, device_id: int) -> DeviceRuntime:
        """Raises Unavailable where there is no such GPU, or no cupy. Blocks while a first use prepares the device."""
        with self._lock:
            runtime = self._runtimes.get(device_id)
            if runtime is None:
                runtime = self._new_runtime(device_id, self.pool_bytes(device_id), self._has_peer_access)
                self._runtimes[device_id] = runtime
            return runtime

    def stream(
        self,
        device_id: int,
        config: ModelConfig | None = None,
        *,
        priority: int = 0,
        runtime: DeviceRuntime | None = None,
    ) -> DeviceStream:
        """A new stream for one instance, with the pinned memory that its model's configuration allows. A framework may
        bring a runtime of its own. Raises as `runtime`."""
        optimization = None if config is None else config.optimization
        inputs = None if optimization is None else optimization.input_pinned_memory
        outputs = None if optimization is None else optimization.output_pinned_memory
        return DeviceStream(
            self.runtime(device_id) if runtime is None else runtime,
            self.pinned,
            priority=priority,
            pins_inputs=inputs is None or inputs.enable,
            pins_outputs=outputs is None or outputs.enable,
        )
