"""Memory pressure: the errors after which SageMaker unloads other models and tries again (status 507).

By their texts, as Triton does: frameworks have no class of errors in common for it.
"""

from __future__ import annotations

from protocol.errors import InsufficientStorage, ServerError

_TEXTS = (
    "CUDA out of memory",
    "CUDA_OUT_OF_MEMORY",
    "Out of memory",
    "Out Of Memory",
    "out of memory",
    "MemoryError",
    "OutOfMemory",
    "OOM",
    "Dst tensor is not initialized",
    "Src tensor is not initialized",
    "CNMEM_STATUS_OUT_OF_MEMORY",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate memory",
    "failed to allocate memory",
    "No space left on device",
    "no memory left",  # as this server's backends say it
)


def is_memory_pressure(error: ServerError) -> bool:
    """Whether memory, or disk space, was what a model lacked."""
    return isinstance(error, InsufficientStorage) or any(text in error.message for text in _TEXTS)
