"""Readings of GPUs through a driver's library that is made up here, and what is shown of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from backends.devices.devices import Devices
from tests.backends.devices.host_runtime import Pins
from tests.trioton.metrics.texts import text_of_series
from trioton.gpus import GpuReading, Gpus
from trioton.metrics.machine import gpu_series, pinned_memory_series


class NVMLError(Exception):
    pass


class Driver:
    """NVML with so many GPUs; what is in `refused` they cannot tell."""

    NVMLError = NVMLError

    def __init__(self, count: int = 2, *refused: str) -> None:
        self.refused = refused
        self.calls: list[str] = []
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: count,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=25, memory=99),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=1000, used=400, free=600),
            "nvmlDeviceGetPowerUsage": lambda handle: 70_500,
            "nvmlDeviceGetPowerManagementLimit": lambda handle: 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 5000,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            self.calls.append(name)
            if name in self.refused:
                raise NVMLError("not supported")
            return self.answers[name](*arguments)

        return call


async def test_the_units_are_those_of_the_metrics(nursery: trio.Nursery) -> None:
    driver = Driver(1)
    gpus = Gpus(interval=1.0, library=lambda: driver)
    await nursery.start(gpus.run)
    driver.answers["nvmlDeviceGetTotalEnergyConsumption"] = lambda handle: 7500
    assert list(gpus.readings()) == [GpuReading("GPU-0", 0.25, 1000, 400, 70.5, 700.0, 2.5)]
    assert (gpus.uuid(0), gpus.uuid(1)) == ("GPU-0", None)


async def test_they_are_read_once_per_interval_and_let_go_at_the_end() -> None:
    driver, now = Driver(1), 0.0
    gpus = Gpus(interval=2.0, library=lambda: driver, clock=lambda: now)
    async with trio.open_nursery() as nursery:
        await nursery.start(gpus.run)
        gpus.readings()
        gpus.readings()
        assert driver.calls.count("nvmlDeviceGetUtilizationRates") == 1
        now = 2.0
        gpus.readings()
        assert driver.calls.count("nvmlDeviceGetUtilizationRates") == 2
        nursery.cancel_scope.cancel()
    assert driver.calls[-1] == "nvmlShutdown"
    assert gpus.readings() == ()


async def test_what_a_gpu_does_not_tell_is_left_out(nursery: trio.Nursery) -> None:
    refused = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMemoryInfo")
    driver = Driver(2, *refused)
    gpus = Gpus(interval=1.0, library=lambda: driver)
    await nursery.start(gpus.run)
    text = text_of_series(gpu_series(gpus))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'nv_gpu_utilization{gpu_uuid="GPU-0"} 0.25',
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25',
        'nv_gpu_power_limit{gpu_uuid="GPU-0"} 700.0',
        'nv_gpu_power_limit{gpu_uuid="GPU-1"} 700.0',
    ]
    assert "# TYPE nv_gpu_utilization gauge\n" in text


def no_package() -> Any:
    raise ModuleNotFoundError("No module named 'pynvml'")


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (no_package, "the package nvidia-ml-py (extra `gpu`) is not installed"),
        (lambda: Driver(1, "nvmlInit"), "not supported"),
    ],
)
async def test_without_a_driver_there_is_one_line_in_the_log(
    library: Any, reason: str, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gpus = Gpus(interval=1.0, library=library)
    await nursery.start(gpus.run)
    assert gpus.readings() == ()
    assert [record.getMessage() for record in caplog.records] == [f"GPU metrics are not shown: {reason}"]


@pytest.mark.parametrize(("has_gpus", "total", "used"), [(False, 0, 0), (True, 65536, 8192)])
def test_pinned_memory(has_gpus: bool, total: int, used: int) -> None:
    """As much as there may be, where there is a GPU; and what is in use."""
    devices = Devices(pinned_bytes=65536, pin=Pins())
    devices.has_gpus = has_gpus
    held = devices.pinned.take(5000)
    assert held is not None
    text = text_of_series(pinned_memory_series(devices))
    for word, value in (("total", total), ("used", used)):
        name = f"nv_pinned_memory_pool_{word}_bytes"
        assert f"# TYPE {name} gauge\n{name} {value}" in text
