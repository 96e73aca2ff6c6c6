"""Engines of installed packages: the backend of an engine that an entry point of the group `trioton.engines` names.

Flow: registry → [this] → a class as any other backend's. The engine itself is imported in its worker only.
"""

from __future__ import annotations

from backends.engines.backend import EngineBackend


def engine_backend(name: str, engine: str) -> type[EngineBackend]:
    """The backend that runs an engine, `module:Class`."""
    return type(f"EngineBackend_{name}", (EngineBackend,), {"__doc__": f"The engine {engine}.", "engine": engine})
