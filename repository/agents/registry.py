"""Registry of repository agents, by name.

`checksum` comes with the server. Any installed package can add one by an entry point of the group
`trioton.repository_agents`:

    [project.entry-points."trioton.repository_agents"]
    my_agent = "my_package.my_module:MyAgent"
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from protocol.errors import InvalidArgument, Unavailable
from repository.agents.checksum import ChecksumAgent
from repository.agents.interface import RepositoryAgent

GROUP = "trioton.repository_agents"


class AgentRegistry:
    """Finds an agent's class. `extra` adds classes that need no entry point, and wins over everything."""

    def __init__(self, extra: Mapping[str, type[RepositoryAgent]] | None = None) -> None:
        self._own: dict[str, type[RepositoryAgent]] = {"checksum": ChecksumAgent, **(extra or {})}

    def find(self, name: str, *, model: str) -> type[RepositoryAgent]:
        """The class of agent `name`, imported now if it was not before; blocks meanwhile.

        Raises:
            InvalidArgument: there is none of this name, or two packages offer it.
            Unavailable: it cannot be imported, or is no agent.
        """
        if (own := self._own.get(name)) is not None:
            return own
        where = f"model '{model}': repository agent '{name}'"
        points = entry_points(group=GROUP)
        found = {point.value: point for point in points if point.name == name}
        if not found:
            known = sorted({*self._own, *(point.name for point in points)})
            raise InvalidArgument(f"{where} is not installed; those that are: {', '.join(known)}")
        if len(found) > 1:
            raise InvalidArgument(f"{where} is offered more than once: {', '.join(sorted(found))}; keep one")
        (point,) = found.values()
        loaded = _import(point, where)
        if not (isinstance(loaded, type) and issubclass(loaded, RepositoryAgent)):
            raise Unavailable(f"{where} ({point.value}) is no subclass of trioton.repository_agents.RepositoryAgent")
        return loaded


def _import(point: EntryPoint, where: str) -> object:
    try:
        loaded: object = point.load()
    except Exception as error:  # whatever a stranger's module does when imported concerns this model alone
        raise Unavailable(
            f"{where} ({point.value}) failed when it was imported: {type(error).__name__}: {error}"
        ) from error
    return loaded
