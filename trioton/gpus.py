"""NVIDIA GPU readings (utilisation, memory, power) through NVML, where it is present."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from backends.devices.machine import uuid_of, visible_handles

logger = logging.getLogger(__name__)


def _library() -> Any:
    import pynvml

    return pynvml


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`utilization` is from 0.0 to 1.0, memory in bytes, power in watts, `energy_joules` since the server's start. None
    where the driver does not tell."""

    uuid: str
    utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None


@dataclass(eq=False, slots=True)
class _Gpu:
    handle: Any
    uuid: str
    energy_at_start: int | None


@dataclass(eq=False, slots=True)
class Gpus:
    """Reads at most once per `interval` seconds. Without the library or a driver there are no readings, and one line in
    the log says why."""

    interval: float
    library: Callable[[], Any] = _library
    clock: Callable[[], float] = time.monotonic
    _nvml: Any = field(default=None, init=False)
    _gpus: list[_Gpu] = field(default_factory=list, init=False)
    _latest: tuple[GpuReading, ...] = field(default=(), init=False)
    _read_at: float | None = field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the GPUs are found; holds the driver until cancelled. Never fails."""
        await trio.to_thread.run_sync(self._open)
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._close()

    def _open(self) -> None:
        try:
            nvml = self.library()
            nvml.nvmlInit()
        except ImportError:
            logger.info("GPU metrics are not shown: the package nvidia-ml-py (extra `gpu`) is not installed")
            return
        except Exception as error:
            logger.info("GPU metrics are not shown: %s", error)
            return
        self._nvml = nvml
        try:
            for handle in visible_handles(nvml):
                uuid = uuid_of(nvml, handle)
                self._gpus.append(_Gpu(handle, uuid, self._ask("nvmlDeviceGetTotalEnergyConsumption", handle)))
        except nvml.NVMLError as error:
            logger.warning("not all GPUs are in the metrics: %s", error)

    def _close(self) -> None:
        if self._nvml is not None:
            self._gpus.clear()
            self._latest = ()
            self._nvml.nvmlShutdown()
            self._nvml = None

    def uuid(self, device_id: int) -> str | None:
        """The GPU with this number, if it is known."""
        return self._gpus[device_id].uuid if 0 <= device_id < len(self._gpus) else None

    def readings(self) -> Sequence[GpuReading]:
        now = self.clock()
        if self._read_at is None or now - self._read_at >= self.interval:
            self._read_at = now
            self._latest = tuple(self._reading(gpu) for gpu in self._gpus)
        return self._latest

    def _reading(self, gpu: _Gpu) -> GpuReading:
        rates = self._ask("nvmlDeviceGetUtilizationRates", gpu.handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", gpu.handle)
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", gpu.handle)
        has_energy = energy is not None and gpu.energy_at_start is not None
        return GpuReading(
            uuid=gpu.uuid,
            utilization=None if rates is None else rates.gpu / 100,
            memory_total_bytes=None if memory is None else memory.total,
            memory_used_bytes=None if memory is None else memory.used,
            power_watts=_thousandth(self._ask("nvmlDeviceGetPowerUsage", gpu.handle)),
            power_limit_watts=_thousandth(self._ask("nvmlDeviceGetPowerManagementLimit", gpu.handle)),
            energy_joules=_thousandth(energy - gpu.energy_at_start) if has_energy else None,
        )

    def _ask(self, call: str, handle: Any) -> Any:
        """None where this GPU has no such figure."""
        try:
            return getattr(self._nvml, call)(handle)
        except self._nvml.NVMLError as error:
            logger.debug("%s: %s", call, error)
            return None


def _thousandth(value: int | None) -> float | None:
    """NVML counts in milliwatts and millijoules."""
    return None if value is None else value / 1000
