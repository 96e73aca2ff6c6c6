"""Which accelerators this machine has."""

from __future__ import annotations

import logging
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
