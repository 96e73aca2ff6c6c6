"""What counts as a device without memory: the words of the driver and of the libraries over it."""

from __future__ import annotations

import pytest
import torch

from backends.devices.errors import device_errors, is_out_of_memory
from backends.onnxruntime.errors import load_errors, run_errors
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError, Unavailable
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
        with pytest.raises(Overloaded, match="no memory left on the device"), context:
            raise error


@pytest.mark.parametrize("error", OTHER, ids=repr)
def test_other_errors_of_a_device(error: Exception) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(Internal), run_errors("m"):
        raise error


def test_what_is_told_of_other_errors() -> None:
    """A device that refuses is unavailable; what is ours already, and what is a defect, pass."""
    with pytest.raises(Unavailable, match="GPU 0: an illegal memory access") as caught, device_errors("GPU 0"):
        raise RuntimeError("an illegal memory access")
    assert not isinstance(caught.value, Overloaded)
    ours = InvalidArgument("out of memory of another kind")
    with pytest.raises(ServerError) as passed, device_errors("GPU 0"):
        raise ours
    assert passed.value is ours
    with pytest.raises(KeyError), device_errors("GPU 0"):
        raise KeyError("x")
