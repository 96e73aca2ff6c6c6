"""The stand-in promises nothing that the real package does not have; needs that, and no GPU."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.backends.tensorrt import fake_tensorrt
from tests.fake_cupy import FakeRuntime


def parts(module: ModuleType) -> Iterator[tuple[str, type]]:
    for name, found in vars(module).items():
        if inspect.isclass(found) and name[0].isupper():
            yield name, found


def test_tensorrt_has_what_its_stand_in_has() -> None:
    real = pytest.importorskip("tensorrt")
    fake = fake_tensorrt.module(FakeRuntime())
    for name, stand_in in parts(fake):
        theirs = getattr(real, name)
        for member, value in vars(stand_in).items():
            if not member.startswith("_") and member not in ("log", "reallocate_output_async", "notify_shape"):
                assert hasattr(theirs, member), f"{name}.{member}"
                if inspect.isfunction(value):
                    assert parameters(theirs, member) >= len(inspect.signature(value).parameters), f"{name}.{member}"
    for member in ("DLA_core", "num_DLA_cores", "engine_host_code_allowed"):
        assert hasattr(real.Runtime, member)
    for member in ("num_io_tensors", "num_optimization_profiles", "device_memory_size_v2"):
        assert hasattr(real.ICudaEngine, member)
    assert callable(real.get_plugin_registry)
    assert callable(real.init_libnvinfer_plugins)
    assert hasattr(real.IPluginRegistry, "load_library")


def test_the_profile_comes_first_when_tensorrt_is_asked_for_values() -> None:
    real = pytest.importorskip("tensorrt")
    told = real.ICudaEngine.get_tensor_profile_values.__doc__
    assert re.search(r"\(self: [^,]*, \w+: [\w.]*(int|SupportsInt), \w+: str\)", told)


def parameters(owner: type, method: str) -> int:
    """How many the longest form has, by its documentation; `self` counts."""
    told = getattr(owner, method).__doc__
    return max(len(re.findall(r"(?:^|, )\w+: ", form)) for form in re.findall(rf"{method}\((.*?)\) ->", told))
