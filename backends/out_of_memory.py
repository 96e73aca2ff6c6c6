"""Recognises out-of-memory errors, of a device or the host, among the exceptions of frameworks.

It fails the request, and the server goes on. The errors have no class in common, and many none of their own: their
words tell.
"""

from __future__ import annotations

from protocol.errors import Overloaded

# How the driver, the C++ library and the frameworks over them call it, in lower case.
_WORDS = (
    "out of memory",
    "out-of-memory",
    "cudaerrormemoryallocation",
    "cuda_error_out_of_memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "failed to allocate memory",
    "outofmemory",  # TensorRT's error codes
    "available memory of",  # onnxruntime's arena at its limit
    "std::bad_alloc",
    "defaultcpuallocator:",  # torch, of the host: "can't allocate memory", or "not enough memory"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had no memory left, as far as the error's class or text tells."""
    if isinstance(error, MemoryError):  # numpy's and cupy's are such, and what becomes of a std::bad_alloc
        return True
    if type(error).__name__ == "OutOfMemoryError":  # torch's, of a device
        return True
    text = str(error).lower()
    return any(words in text for words in _WORDS)


def out_of_memory(place: str, error: BaseException) -> Overloaded:
    """`place` begins the text: which model, instance or device."""
    return Overloaded(f"{place}: no memory left: {str(error) or type(error).__name__}")
