"""The interface of repository agents; public as `trioton.repository_agents`.

An agent is named in a model's configuration (`model_repository_agents`), and goes along with each load of that model.
Source: Triton's repository agent API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repository.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class AgentModel:
    """The model that an agent acts on.

    Attributes:
        name: the model's name.
        directory: the model's folder as it is now: agents before this one may have given another.
        config: its configuration as it was before any agent, and before it is completed.
    """

    name: str
    directory: Path
    config: ModelConfig


class RepositoryAgent:
    """One agent for one load of one model.

    Its methods are called one after the other, each in some thread, and may block; a call that has begun is never cut
    off. `load` is called before the model's configuration is completed; then either `load_complete`, or, if the load
    has failed for whatever reason, `load_fail` and nothing more. When the model is unloaded or replaced, `unload` is
    called, and `unload_complete` when nothing of it runs any more. An agent whose own `load` has raised is called no
    more. Several agents of a model are called in the order of its configuration for `load` and `unload`, in reverse for
    the others.

    Only an error of `load` matters to the model, which is then not loaded; others are logged. A server that is killed
    calls nothing: what an agent leaves on the disk must be safe to find.

    Attributes:
        parameters: those that the model's configuration gives the agent.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        """Judge the parameters.

        Raises:
            ValueError: they cannot be; the text says what was expected. The model is not loaded.
        """
        self.parameters = parameters

    def load(self, model: AgentModel) -> Path | None:
        """The folder that is to be loaded in place of `model.directory`; None for that one. It may have another
        configuration, but the model keeps its name.

        Raises:
            Exception: whatever it is, the model is not loaded, and its text is the reason.
        """
        return None

    def load_complete(self, model: AgentModel) -> None:
        """Every version of the model serves."""

    def load_fail(self, model: AgentModel) -> None:
        """The model does not serve, and nothing of this load is left but what the agent made."""

    def unload(self, model: AgentModel) -> None:
        """The model takes no more requests, and finishes those that it has."""

    def unload_complete(self, model: AgentModel) -> None:
        """The model is gone."""
