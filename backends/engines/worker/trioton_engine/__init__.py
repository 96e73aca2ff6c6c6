"""The engine port, and the loop that drives an engine in its worker; in the worker also known as `trioton.engines`."""

import sys

from .engine import (
    FINISHED,
    Adapter,
    Engine,
    EngineInfo,
    EngineModel,
    Event,
    Generation,
    Image,
    Refused,
    Sampling,
    Stats,
    Structure,
    TokenLogprob,
)

__all__ = [
    "FINISHED",
    "Adapter",
    "Engine",
    "EngineInfo",
    "EngineModel",
    "Event",
    "Generation",
    "Image",
    "Refused",
    "Sampling",
    "Stats",
    "Structure",
    "TokenLogprob",
]

# Usage data, which the import of openvino sends by default: without this package it sends none.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
