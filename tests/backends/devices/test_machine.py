"""Which accelerators there are, as the driver's library tells it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from backends.devices.machine import VISIBLE_DEVICES, DeviceUsage, compute_capabilities, gpu_memory


class NVMLError(Exception):
    pass


def library(**calls: object) -> SimpleNamespace:
    """No GPU is needed: NVML's calls, answered."""
    return SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, **calls)


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE_DEVICES, raising=False)


def test_capabilities_in_the_order_of_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [(7, 5), (9, 0)]
    made = library(
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetCudaComputeCapability=lambda handle: gpus[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", made)
    assert compute_capabilities() == ("7.5", "9.0")


def test_no_driver_and_no_library_mean_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=NVMLError, nvmlInit=fail))
    assert compute_capabilities() == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert compute_capabilities() == ()


def machine() -> SimpleNamespace:
    """Three GPUs, the second of which is divided."""
    capabilities = [(7, 5), (8, 0), (9, 0)]
    uuids = ["GPU-aa11", "GPU-ab22", b"GPU-cc33"]

    def by_uuid(uuid: str) -> int:
        if uuid != "MIG-1":
            raise NVMLError("Not Found")
        return 1

    return library(
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda handle: uuids[handle],
        nvmlDeviceGetCudaComputeCapability=lambda handle: capabilities[handle],
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=handle, total=10),
    )


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ("7.5", "8.0", "9.0")),
        ("2,0", ("9.0", "7.5")),
        (" 1 ", ("8.0",)),
        ("GPU-cc,GPU-aa11", ("9.0", "7.5")),
        ("MIG-1", ("8.0",)),
        ("MIG-2,0", ()),
        ("2,7,0", ("9.0",)),
        ("2,-1,0", ("9.0",)),
        ("GPU-a", ()),  # two begin so
        ("", ()),
    ],
)
def test_only_what_cuda_shows_to_the_process(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: tuple[str, ...]
) -> None:
    """In CUDA's order, by which instances name their GPU; up to the first that it does not know."""
    monkeypatch.setitem(sys.modules, "pynvml", machine())
    if visible is not None:
        monkeypatch.setenv(VISIBLE_DEVICES, visible)
    assert compute_capabilities() == expected


def test_memory_by_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", machine())
    monkeypatch.setenv(VISIBLE_DEVICES, "2,0")
    assert (gpu_memory(0), gpu_memory(1), gpu_memory(2)) == (DeviceUsage(2, 10), DeviceUsage(0, 10), None)


def test_a_driver_that_fails_midway(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise NVMLError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetCount=fail))
    assert compute_capabilities() == ()
    assert gpu_memory(0) is None
