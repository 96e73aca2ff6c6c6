"""The backend over stand-ins of TensorRT and CUDA."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.backends.tensorrt import fake_cuda, fake_tensorrt
from tests.backends.tensorrt.fake_cuda import Gpu

# Those that import tensorrt and cupy.
_BOUND = ("library", "device", "engines", "execution")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU of the stand-in, which the backend's modules are imported over."""
    made = Gpu()
    for name, module in {**fake_cuda.modules(made), "tensorrt": fake_tensorrt.module(made)}.items():
        monkeypatch.setitem(sys.modules, name, module)
    package = sys.modules["backends.tensorrt"]
    for name in _BOUND:
        monkeypatch.delitem(sys.modules, f"backends.tensorrt.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    yield made
    for name in _BOUND:
        sys.modules.pop(f"backends.tensorrt.{name}", None)
        vars(package).pop(name, None)
