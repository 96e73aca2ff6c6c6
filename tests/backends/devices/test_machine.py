"""Which accelerators there are, as the driver's library tells it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from backends.devices.machine import compute_capabilities


class NVMLError(Exception):
    pass


def library(**calls: object) -> SimpleNamespace:
    """No GPU is needed: NVML's calls, answered."""
    return SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, **calls)


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
