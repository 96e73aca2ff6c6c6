"""The backend over stand-ins of TensorRT and cupy."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.backends.tensorrt import fake_tensorrt
from tests.fake_cupy import FakeRuntime

# Those that import tensorrt.
_BOUND = ("library", "engines", "execution")


@pytest.fixture
def gpu(cupy_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    """A machine with one GPU, which the backend's modules are imported over."""
    cupy_runtime.device_count = 1
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.module(cupy_runtime))
    monkeypatch.setattr("backends.devices.machine.compute_capabilities", lambda: ("8.6",) * cupy_runtime.device_count)
    package = sys.modules["backends.tensorrt"]
    for name in _BOUND:
        monkeypatch.delitem(sys.modules, f"backends.tensorrt.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    yield cupy_runtime
    for name in _BOUND:
        sys.modules.pop(f"backends.tensorrt.{name}", None)
        vars(package).pop(name, None)
