"""Public: the interface of engines, libraries that generate the tokens of language models.

An installed package offers an engine by an entry point of the group `trioton.engines`, and a model asks for it by
`backend: "mine"` in its `config.pbtxt`:

    [project.entry-points."trioton.engines"]
    mine = "my_package.my_module:MyEngine"

The server tokenizes, queues, detokenizes and answers; the engine gets token ids and gives token ids. It runs in a
process of its own, and its module is imported only there, where this one is all that there is of the server.
"""

from __future__ import annotations

from backends.engines.worker.trioton_engine import (
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
