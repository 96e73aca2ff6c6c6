"""Prepares models as a server does, short of loading them: configuration read, completed, validated, composed.

Flow: model directories → [prepared] → completed configurations, or what is wrong, for the commands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from actors.lifecycle.loader import ModelLoader
from actors.model.servable import Servable
from backends.devices.machine import compute_capabilities
from backends.registry import BackendRegistry
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument, NotFound, ServerError
from protocol.messages import LATEST_VERSION
from repository.layout import ModelDirectory
from trioton.flags.server import backend_settings
from trioton.tools.flags import ToolFlags


async def model_loader(flags: ToolFlags) -> ModelLoader:
    """The loader that a server with these flags would have on this machine, but without the server's resources."""
    return ModelLoader(
        BackendRegistry(directories=flags.backend_directory),
        compute_capabilities=await trio.to_thread.run_sync(compute_capabilities),
        auto_complete_config=not flags.disable_auto_complete_config,
        config_name=flags.model_config_name,
        backend_config=backend_settings(flags.backend_config),
        engine=flags.engine,
    )


@dataclass(slots=True)
class PreparedModels:
    """The models of some directories by name, each prepared when it is first asked for, after those that it needs."""

    loader: ModelLoader
    directories: Mapping[str, ModelDirectory]
    _done: dict[str, tuple[Servable, ...] | ServerError] = field(default_factory=dict)

    async def get(self, name: str, trail: tuple[str, ...] = ()) -> tuple[Servable, ...]:
        """One servable, not running, for each version that would be served.

        Raises:
            ServerError: the reason why it would not be served.
        """
        if name in trail:
            raise InvalidArgument(f"circular dependency between ensembles: {' -> '.join((*trail, name))}")
        if name not in self._done:
            try:
                self._done[name] = await self._prepare(name, (*trail, name))
            except ServerError as error:
                self._done[name] = error
        found = self._done[name]
        if isinstance(found, ServerError):
            raise found
        return found

    async def _prepare(self, name: str, trail: tuple[str, ...]) -> tuple[Servable, ...]:
        directory = self.directories.get(name)
        if directory is None:
            raise NotFound(f"model '{name}' is in no repository")
        needs = await self.loader.composing_models(directory, LoadParameters())
        missing = []
        for needed in needs.names:
            try:
                await self.get(needed, trail)
            except ServerError as error:
                if str(error).startswith("circular"):
                    raise
                missing.append(needed)
        if missing:
            raise InvalidArgument(
                f"{needs.kind} {name} contains models that are not available or ambiguous: {', '.join(missing)}"
            )
        config = await self.loader.read_config(directory, LoadParameters())
        agents = self.loader.agents(directory, config)
        moved = await agents.load()
        try:
            if moved != directory:
                config = await self.loader.read_config(moved, LoadParameters())
            return await self.loader.prepare(moved, config, self._find)
        finally:
            await agents.fail()  # nothing of it is served

    def _find(self, name: str, version: int) -> Servable:
        models = self._done.get(name)
        if isinstance(models, ServerError) or not models:
            raise NotFound(f"model '{name}' is not found")
        if version == LATEST_VERSION:
            return models[-1]
        for model in models:
            if model.version == version:
                return model
        raise NotFound(f"version {version} of model '{name}' is not found")
