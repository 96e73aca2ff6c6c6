"""Engines: backends for language models, whose tokens a library generates in a worker process.

`backend` holds the class; `worker_link` is an engine's worker as the server sees it, `generations` what it works on,
`admission` what it is given when. `request`, `sampling`, `answer`, `settings` and `completion` are pure. The folder
`worker` is what runs in the process: the engine port, and the engines.
"""

from __future__ import annotations

from dataclasses import replace

from backends.engines.backend import EngineBackend
from backends.engines.conversion.converted import WEIGHT_FORMAT, check_weight_format, openvino_folder
from backends.engines.settings import EngineSettings
from backends.interface import ModelSource


class ScriptedBackend(EngineBackend):
    """Replays tokens, for tests and measurements."""

    engine = "trioton_engine.scripted:ScriptedEngine"


class OpenVinoGenAiBackend(EngineBackend):
    """OpenVINO GenAI, with continuous batching."""

    engine = "trioton_engine.openvino_genai:OpenVinoGenAiEngine"

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """As of any engine; files are not converted."""
        await super().check_model(source)
        check_weight_format(source.config.parameter(WEIGHT_FORMAT), f"model '{source.name}'")

    async def prepared(self, settings: EngineSettings) -> EngineSettings:
        """Convert Hugging Face's files, unless the cache has them."""
        options = dict(settings.options)
        weight_format = str(options.pop(WEIGHT_FORMAT, ""))
        directory = await openvino_folder(self.spec.source, settings.directory, weight_format)
        return replace(settings, directory=directory, options=options)


class VllmBackend(EngineBackend):
    """vLLM, by its AsyncLLM."""

    engine = "trioton_engine.vllm:VllmEngine"


__all__ = ["EngineBackend", "OpenVinoGenAiBackend", "ScriptedBackend", "VllmBackend"]
