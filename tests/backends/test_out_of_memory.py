"""What counts as memory that is used up: the words of drivers, allocators and the libraries over them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from backends.devices.errors import device_errors
from backends.onnxruntime.errors import load_errors, run_errors
from backends.out_of_memory import is_out_of_memory
from protocol.errors import Internal, Overloaded
from tests.fake_cupy import OutOfMemoryError

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 7.9 GiB"),
    OutOfMemoryError("Out of memory allocating 1,024 bytes (allocated so far: 0 bytes, limit set to: 512 bytes)."),
    RuntimeError("cudaErrorMemoryAllocation: out of memory"),
    RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. "
        "Name:'' Status Message: BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer "
        "of size 4294967296"
    ),
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
        "Available memory of 2816 is smaller than requested bytes of 8192"
    ),
    RuntimeError(
        "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; expr=cudaMalloc"
    ),
    MemoryError(),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 40000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate"
    ),
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Expand node. Name:'' "
        "Status Message: std::bad_alloc"
    ),
]
OTHER = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered"),
    ValueError("shape mismatch"),
]


@pytest.mark.parametrize("error", FULL, ids=repr)
def test_memory_that_is_used_up(error: Exception) -> None:
    """RESOURCE_EXHAUSTED, whether a model runs or is loaded; the same request may succeed later."""
    assert is_out_of_memory(error)
    for context in (device_errors("GPU 0"), run_errors("m"), load_errors("m")):
        with pytest.raises(Overloaded, match="no memory left"), context:
            raise error


@pytest.mark.parametrize("error", OTHER, ids=repr)
def test_other_errors(error: Exception) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(Internal), run_errors("m"):
        raise error


@pytest.mark.parametrize("backend", ["jax", "onnxruntime", "openvino", "pytorch", "tensorflow"])
def test_every_framework_that_has_no_memory_left_says_so(backend: str) -> None:
    """As what numpy raises, in a load and in a run."""
    errors: Any = importlib.import_module(f"backends.{backend}.errors")
    run = errors.run_errors("m", ()) if backend == "jax" else errors.run_errors("m")
    load = errors.load_errors("m") if backend in ("onnxruntime", "pytorch") else errors.load_errors("m", "reading")
    for context in (run, load):
        with pytest.raises(Overloaded, match="Unable to allocate"), context:
            np.empty(10**17, np.uint8)
