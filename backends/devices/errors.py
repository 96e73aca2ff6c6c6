"""What goes wrong on a device, as our errors: memory that is used up fails the request, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import Overloaded, ServerError, Unavailable

# How the driver and the libraries over it call it, in lower case. Their errors have no class in common.
_OUT_OF_MEMORY = (
    "out of memory",
    "out-of-memory",
    "cudaerrormemoryallocation",
    "cuda_error_out_of_memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "failed to allocate memory",
    "outofmemory",  # TensorRT's error codes
    "available memory of",  # onnxruntime's arena at its limit
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had no memory left, as far as the error's class or text tells."""
    if isinstance(error, MemoryError):  # cupy's OutOfMemoryError is one
        return True
    if type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    text = str(error).lower()
    return any(words in text for words in _OUT_OF_MEMORY)


def out_of_memory(place: str, error: BaseException) -> Overloaded:
    return Overloaded(f"{place}: no memory left on the device: {error}")


@contextmanager
def device_errors(place: str) -> Iterator[None]:
    """Around calls of cupy. `place` begins the text."""
    try:
        yield
    except ServerError:
        raise
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(place, error) from error
        raise Unavailable(f"{place}: {error}") from error
