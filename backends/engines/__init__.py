"""Engines: backends for language models, whose tokens a library generates in a worker process.

`backend` holds the class; `worker_link` is an engine's worker as the server sees it, `generations` what it works on,
`admission` what it is given when. `request`, `sampling`, `answer`, `settings` and `completion` are pure. The folder
`worker` is what runs in the process: the engine port, and the engines.
"""

from __future__ import annotations

from backends.engines.backend import EngineBackend


class ScriptedBackend(EngineBackend):
    """Replays tokens, for tests and measurements."""

    engine = "trioton_engine.scripted:ScriptedEngine"


class OpenVinoGenAiBackend(EngineBackend):
    """OpenVINO GenAI, with continuous batching."""

    engine = "trioton_engine.openvino_genai:OpenVinoGenAiEngine"


class VllmBackend(EngineBackend):
    """vLLM, by its AsyncLLM."""

    engine = "trioton_engine.vllm:VllmEngine"


__all__ = ["EngineBackend", "OpenVinoGenAiBackend", "ScriptedBackend", "VllmBackend"]
