"""The engine port, and the loop that drives an engine in its worker; in the worker also known as `trioton.engines`."""

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
