"""The job stores that come with the server, for tests of what all of them promise."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from actors.jobs.batches.batches import FullStore
from actors.jobs.redis.store import RedisStore
from actors.jobs.sqlite.store import SqliteStore
from actors.redis_client import RedisAddress
from protocol.jobs.job import Job
from protocol.jobs.store import JobStore, Limits, Outcome

# Longer than any test: no server is taken for one that has ended.
LEASE_SECONDS = 3600.0


async def finish_one(store: JobStore, outcome: Outcome, now: float) -> Job | None:
    """Store one outcome."""
    (job,) = await store.finish([outcome], now)
    return job


class Stores(Protocol):
    """Makes stores of one kind, all at the same place."""

    kind: str

    def make(self, limits: Limits) -> FullStore: ...

    async def kill(self, store: JobStore) -> None:
        """End it as a crash of its server would."""

    async def recover(self, store: JobStore) -> None:
        """A store that is open is to see that the one which was killed has ended."""


class SqliteStores:
    """In a folder."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, limits: Limits) -> SqliteStore:
        return SqliteStore(self._folder, limits)

    async def kill(self, store: JobStore) -> None:
        await store.close()

    async def recover(self, store: JobStore) -> None:
        """Its `open` has."""


class RedisStores:
    """In a Redis server, under a name of their own."""

    kind = "redis"

    def __init__(self, port: int) -> None:
        self._address = RedisAddress("127.0.0.1", port=port, connect_seconds=5.0, socket_seconds=5.0)
        self._name = secrets.token_hex(8)
        self._ended: list[str] = []

    def make(self, limits: Limits) -> RedisStore:
        return RedisStore(self._address, self._name, LEASE_SECONDS, limits)

    async def kill(self, store: JobStore) -> None:
        assert isinstance(store, RedisStore)
        store._watch.stop()
        await store._call("wake")
        store._is_open = False  # so that it leaves without a word
        self._ended.append(store._server)
        await store.close()

    async def recover(self, store: JobStore) -> None:
        assert isinstance(store, RedisStore)
        for server in self._ended:
            await store._call("recover", *store._recover_arguments(server))
        self._ended.clear()


MakeStores = Callable[[], Stores]
