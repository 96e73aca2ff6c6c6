"""The cache `redis` (`--cache-config redis,host=<name>,…`): entries in a Redis server, which other servers may share.

The `redis` package's client blocks, so each call runs in a thread of a bounded pool. Eviction is up to the Redis server
(`maxmemory-policy allkeys-lru`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import redis
import trio

from actors.cache.interface import Cache, CacheError, read_integer
from actors.redis_client import RedisAddress, make_client

KEY_PREFIX = b"trioton:response:"

_LARGEST = 2**31 - 1


class RedisCache(Cache):
    """Settings: `host`, `port` (6379), `db` (0), `user`, `password`, `tls_enabled` (false), `cacert` (a file),
    `connect_timeout` and `socket_timeout` in milliseconds (500), `pool_size` (8, calls at the same time), `ttl` in
    seconds (0: entries do not expire)."""

    is_shared: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        rest = dict(settings)
        host = rest.pop("host", "")
        if not host:
            raise ValueError("setting 'host' is required")
        pool_size = read_integer(rest, "pool_size", 8, minimum=1, maximum=1024)
        tls = rest.pop("tls_enabled", "false").lower()
        if tls not in ("true", "false"):
            raise ValueError(f"setting 'tls_enabled' expects true or false, got '{tls}'")
        self._ttl = read_integer(rest, "ttl", 0, minimum=0, maximum=_LARGEST)
        self._limiter = trio.CapacityLimiter(pool_size)
        self._client = make_client(
            RedisAddress(
                host,
                port=read_integer(rest, "port", 6379, minimum=1, maximum=65535),
                db=read_integer(rest, "db", 0, minimum=0, maximum=_LARGEST),
                user=rest.pop("user", None),
                password=rest.pop("password", None),
                is_tls=tls == "true",
                ca_file=rest.pop("cacert", None),
                connect_seconds=read_integer(rest, "connect_timeout", 500, minimum=1, maximum=_LARGEST) / 1000,
                socket_seconds=read_integer(rest, "socket_timeout", 500, minimum=1, maximum=_LARGEST) / 1000,
            )
        )
        super().__init__(rest)

    async def open(self) -> None:
        await self._call(self._client.ping)

    async def look_up(self, key: bytes) -> bytes | None:
        value = await self._call(self._client.get, KEY_PREFIX + key)
        return value if isinstance(value, bytes) else None

    async def insert(self, key: bytes, value: bytes) -> bool:
        def insert() -> object:
            return self._client.set(KEY_PREFIX + key, value, nx=True, ex=self._ttl or None)

        return bool(await self._call(insert))

    async def close(self) -> None:
        await trio.to_thread.run_sync(self._client.close, abandon_on_cancel=True)

    async def _call(self, call: Callable[..., object], *arguments: object) -> object:
        try:
            return await trio.to_thread.run_sync(
                lambda: call(*arguments), abandon_on_cancel=True, limiter=self._limiter
            )
        except (redis.RedisError, OSError) as error:
            raise CacheError(f"{type(error).__name__}: {error}") from error
