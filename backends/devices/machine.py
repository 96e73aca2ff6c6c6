"""Device discovery: the accelerators of this machine, and their free memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("trioton.devices")

# CUDA's own variable: which GPUs a process sees, and in which order. The driver's library knows all of the machine.
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def compute_capabilities() -> tuple[str, ...]:
    """The CUDA compute capability (`7.5`) of each NVIDIA GPU that this process may use, in the order of their ids; none
    without the driver or without the `gpu` extra.

    Blocks for as long as the driver takes to answer.
    """
    with _driver() as nvml:
        if nvml is None:
            return ()
        try:
            return tuple(_capability(nvml, handle) for handle in visible_handles(nvml))
        except nvml.NVMLError as error:
            logger.warning("no NVIDIA GPU is used: %s", error)
            return ()


def _capability(nvml: Any, handle: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """In bytes, of the whole device: what other processes use counts too."""

    used: int
    total: int


def gpu_memory(device_id: int) -> DeviceUsage | None:
    """The memory of a GPU by its number; None where the driver or the `gpu` extra is missing, or the driver does not
    tell. Blocks for as long as the driver takes to answer."""
    with _driver() as nvml:
        if nvml is None:
            return None
        try:
            handles = visible_handles(nvml)
            if not 0 <= device_id < len(handles):
                return None
            memory = nvml.nvmlDeviceGetMemoryInfo(handles[device_id])
            return DeviceUsage(int(memory.used), int(memory.total))
        except nvml.NVMLError as error:
            logger.warning("the memory of GPU %d is not known: %s", device_id, error)
            return None


def visible_handles(nvml: Any) -> list[Any]:
    """NVML's handles of the GPUs that CUDA shows to this process, by their numbers there."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    wanted = os.environ.get(VISIBLE_DEVICES)
    if wanted is None:
        return handles
    found: list[Any] = []
    for word in wanted.split(","):
        handle = _handle(nvml, handles, word.strip())
        if handle is None:  # CUDA, too, stops at what it does not know
            break
        found.append(handle)
    return found


def _handle(nvml: Any, handles: list[Any], word: str) -> Any:
    """A GPU by its number or the beginning of its UUID; None where there is none."""
    if word.isdecimal():
        return handles[int(word)] if int(word) < len(handles) else None
    if word.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(word)
        except nvml.NVMLError:
            return None
    named = [handle for handle in handles if word.startswith("GPU-") and uuid_of(nvml, handle).startswith(word)]
    return named[0] if len(named) == 1 else None


def uuid_of(nvml: Any, handle: Any) -> str:
    found = nvml.nvmlDeviceGetUUID(handle)
    return found.decode() if isinstance(found, bytes) else str(found)  # bytes in old releases


@contextmanager
def _driver() -> Iterator[Any]:
    """The driver's library, ready to be asked; None without it."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        yield None
        return
    except Exception as error:  # NVMLError: no driver
        logger.info("no NVIDIA GPU is used: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
