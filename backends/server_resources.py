"""Resources that backends keep for the life of the server, beyond one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import trio


class Resource(Protocol):
    async def close(self) -> None:
        """Free all of it. Shielded, and bounded by some seconds."""


R = TypeVar("R", bound=Resource)


class ServerResources:
    """One for each server, which closes it when all of its models are unloaded."""

    def __init__(self) -> None:
        self._by_key: dict[str, Resource] = {}

    def find(self, key: str, make: Callable[[], R]) -> R:
        """That of the backend's own key, made where there is none yet."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = make()
        return cast(R, found)

    async def close(self) -> None:
        while self._by_key:
            _, resource = self._by_key.popitem()
            with trio.CancelScope(shield=True):
                await resource.close()
