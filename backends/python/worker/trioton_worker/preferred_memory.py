"""`PreferredMemory`: where a model wants the outputs of its BLS calls."""

from __future__ import annotations

import enum

from .arguments import INT64, to_integer


class MemoryType(enum.IntEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Where a called model's outputs should be: on the CPU, as without it, or on a GPU, where one can be used."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError(
                "PreferredMemory: preferred_memory_type must be TRITONSERVER_MEMORY_GPU or TRITONSERVER_MEMORY_CPU, "
                f"found type {type(preferred_memory_type)}"
            )
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = to_integer(preferred_device_id, "PreferredMemory: preferred_device_id", INT64)
