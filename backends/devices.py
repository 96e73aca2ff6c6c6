"""Which accelerators this machine has."""

from __future__ import annotations

import logging

logger = logging.getLogger("trioton.devices")


def gpu_count() -> int:
    """The number of NVIDIA GPUs that the driver reports; 0 without the driver or without the `gpu` extra.

    Blocks for as long as the driver takes to answer.
    """
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("no NVIDIA GPU is used: %s", error)
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
