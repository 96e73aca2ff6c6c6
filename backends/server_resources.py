"""Resources that backends keep for the life of the server, beyond one model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar, cast

import trio


class Resource(Protocol):
    async def run(self) -> None:
        """Whatever it does by itself, until it is cancelled, which is before `close`; it may return, and must not
        raise."""

    async def close(self) -> None:
        """Free all of it. Shielded, and bounded by some seconds."""


R = TypeVar("R", bound=Resource)


class ServerResources:
    """One for each server. Made by `server_resources`; `nursery` is where resources run."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._by_key: dict[str, Resource] = {}

    def find(self, key: str, make: Callable[[], R]) -> R:
        """That of the backend's own key, made where there is none yet."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = make()
            self._nursery.start_soon(found.run)
        return cast(R, found)

    async def close(self) -> None:
        while self._by_key:
            _, resource = self._by_key.popitem()
            with trio.CancelScope(shield=True):
                await resource.close()


@asynccontextmanager
async def server_resources() -> AsyncIterator[ServerResources]:
    """The resources of a server, until the block ends, with all of its models unloaded; then they are freed."""
    async with trio.open_nursery() as nursery:
        resources = ServerResources(nursery)
        try:
            yield resources
        finally:
            nursery.cancel_scope.cancel()
            await resources.close()
