"""Repository agents of one model load: called before the load, at its end, and at the unload (Triton's agent actions).

Flow: model life cycle → [model agents] → repository agents, in threads. `attend` runs in the nursery of the models.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from actors.lifecycle.table import VersionEntry
from protocol.errors import Internal, InvalidArgument, ServerError, text_of
from repository.agents.interface import AgentModel, RepositoryAgent
from repository.agents.registry import AgentRegistry
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig

logger = logging.getLogger("trioton.model_agents")

# What an agent may take to clean up when the server does not wait for it any more.
CLEAN_UP_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class ModelAgents:
    """`load` first, then `fail` or `attend`. Without agents none of them does anything."""

    directory: ModelDirectory
    config: ModelConfig
    registry: AgentRegistry
    # Those whose `load` has succeeded, each with the model as it got it.
    _loaded: list[tuple[str, RepositoryAgent, AgentModel]] = field(default_factory=list)

    async def load(self) -> ModelDirectory:
        """Returns where the model is to be loaded from. If it raises or is cancelled, the agents that were called
        before have been notified.

        Raises:
            ServerError: an agent cannot be found, or refuses the model.
        """
        wanted = () if self.config.model_repository_agents is None else self.config.model_repository_agents.agents
        directory = self.directory
        try:
            for each in wanted:
                model = AgentModel(directory.name, directory.path, self.config)
                agent, moved = await trio.to_thread.run_sync(self._load_one, each.name, each.parameters, model)
                self._loaded.append((each.name, agent, model))
                if moved is not None:
                    # Its own place is all that is to be looked at: what lies beside it is no other model.
                    directory = replace(directory, path=moved, repository=moved.parent)
        except BaseException:
            await self.fail()
            raise
        return directory

    def _load_one(
        self, name: str, parameters: Mapping[str, str], model: AgentModel
    ) -> tuple[RepositoryAgent, Path | None]:
        """In a thread."""
        made = self.registry.find(name, model=model.name)
        try:
            agent = made(dict(parameters))
            moved = agent.load(model)
        except ServerError as error:
            raise type(error)(f"repository agent '{name}' of model '{model.name}': {error}") from None
        except ValueError as error:
            raise InvalidArgument(f"repository agent '{name}' of model '{model.name}': {error}") from error
        except Exception as error:
            logger.error("repository agent '%s' of model '%s' has failed", name, model.name, exc_info=error)
            raise Internal(f"repository agent '{name}' of model '{model.name}' has failed: {text_of(error)}") from error
        if moved is not None and not moved.is_dir():
            raise Internal(f"repository agent '{name}' of model '{model.name}' gave '{moved}', which is no directory")
        return agent, moved

    async def fail(self) -> None:
        """The load has failed: notify the agents."""
        await self._tell_shielded("load_fail", reversed(self._loaded))

    async def attend(self, versions: Sequence[VersionEntry]) -> None:
        """Notify the agents of the state of the loaded versions until their end. Cancelled, it notifies them of the end
        at once."""
        if not self._loaded:
            return
        try:
            await self._tell("load_complete", reversed(self._loaded))
            for version in versions:
                await version.leaving.wait()
            await self._tell("unload", self._loaded)
            for version in versions:
                await version.ended.wait()
        finally:
            await self._tell_shielded("unload_complete", reversed(self._loaded))

    async def _tell_shielded(self, word: str, told: Iterable[tuple[str, RepositoryAgent, AgentModel]]) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLEAN_UP_SECONDS):
            await self._tell(word, told, abandon=True)

    async def _tell(
        self, word: str, told: Iterable[tuple[str, RepositoryAgent, AgentModel]], *, abandon: bool = False
    ) -> None:
        """Cancelled, it waits for the call in progress, so that no other overlaps it; unless it may abandon it."""
        for name, agent, model in told:
            try:
                await trio.to_thread.run_sync(getattr(agent, word), model, abandon_on_cancel=abandon)
            except Exception:  # what an agent cannot clean up is no reason to end
                logger.exception("repository agent '%s' of model '%s' failed in %s", name, model.name, word)
