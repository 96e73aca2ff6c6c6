"""A repository agent for models whose files are compressed: `1/model.onnx.gz` is loaded as `1/model.onnx`."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trioton.repository_agents import AgentModel, RepositoryAgent


class GzipAgent(RepositoryAgent):
    def __init__(self, parameters: Mapping[str, str]) -> None:
        super().__init__(parameters)
        if parameters:
            raise ValueError(f"it takes no parameters, got {', '.join(parameters)}")

    def load(self, model: AgentModel) -> Path:
        self._temporary = tempfile.TemporaryDirectory(prefix=f"gzip-{model.name}-")
        try:
            copy = Path(self._temporary.name) / model.name
            shutil.copytree(model.directory, copy)
            for packed in copy.rglob("*.gz"):
                with gzip.open(packed) as source, packed.with_suffix("").open("wb") as target:
                    shutil.copyfileobj(source, target)
                packed.unlink()
        except BaseException:  # whoever raises is called no more
            self._temporary.cleanup()
            raise
        return copy

    def load_fail(self, model: AgentModel) -> None:
        self._temporary.cleanup()

    def unload_complete(self, model: AgentModel) -> None:
        self._temporary.cleanup()
