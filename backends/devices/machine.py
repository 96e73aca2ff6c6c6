"""Which accelerators this machine has, and how full they are."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("trioton.devices")


def compute_capabilities() -> tuple[str, ...]:
    """The CUDA compute capability (`7.5`) of each NVIDIA GPU that the driver reports, in the order of their ids; none
    without the driver or without the `gpu` extra.

    Blocks for as long as the driver takes to answer.
    """
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("no NVIDIA GPU is used: %s", error)
        return ()
    try:
        return tuple(_capability(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _capability(nvml: Any, index: int) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(nvml.nvmlDeviceGetHandleByIndex(index))
    return f"{major}.{minor}"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """In bytes, of the whole device: what other processes use counts too."""

    used: int
    total: int


def gpu_memory(device_id: int) -> DeviceMemory | None:
    """The memory of a GPU by its number; None where the driver or the `gpu` extra is missing, or the driver does not
    tell. Blocks for as long as the driver takes to answer."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(device_id))
        return DeviceMemory(int(memory.used), int(memory.total))
    except pynvml.NVMLError as error:
        logger.warning("the memory of GPU %d is not known: %s", device_id, error)
        return None
    finally:
        pynvml.nvmlShutdown()
