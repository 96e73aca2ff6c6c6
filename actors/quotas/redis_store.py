"""The quota store in a Redis server (`--quota-store redis://…`): a key for each limit that is in use, which goes by
itself when all of the limit is free again; all of an exchange is one run of a script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import redis
import trio

from actors.quotas.exchange import StoreAway
from actors.redis_client import RedisAddress, UrlReader, make_client
from protocol.errors import text_of
from protocol.quotas.shared import Push

SCRIPT = (files(__package__) / "exchange.lua").read_text("utf-8")
# Exchanges at the same time, and of those all but one were given up: their threads end by and by.
_CONNECTIONS = 4
_FORM = "redis://[<user>:<password>@]<host>[:<port>][/<db>][?name=…&cacert=…&connect_timeout=…&socket_timeout=…]"
_READER = UrlReader("quota store", _FORM, timeout_ms=500)


class RedisQuotaStore:
    """Implements `exchange.QuotaStore`. Servers with the same `name` share; its braces put all keys into one slot."""

    def __init__(self, address: RedisAddress, name: str) -> None:
        self._prefix = f"trioton:{{{name}}}:"
        # Not tried again by the client: what is used would count twice.
        self._client = make_client(address, retries=0)
        self._script: Any = self._client.register_script(SCRIPT)
        self._limiter = trio.CapacityLimiter(_CONNECTIONS)

    async def exchange(self, pushes: Sequence[Push]) -> Sequence[float]:
        keys = [self._prefix + push.name for push in pushes]
        arguments = [number for push in pushes for number in _arguments(push)]

        def call() -> list[float]:
            return [float(level) for level in self._script(keys=keys, args=arguments)]

        try:
            return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        except (redis.RedisError, OSError, ValueError) as error:
            raise StoreAway(text_of(error)) from error

    async def close(self) -> None:
        await trio.to_thread.run_sync(self._client.close, abandon_on_cancel=True)


def _arguments(push: Push) -> tuple[float, float, float, float]:
    return push.delta, push.base, push.rate, -1 if push.most is None else push.most


def make_quota_store(url: str) -> RedisQuotaStore:
    """No I/O. `url` begins with `redis://`, or `rediss://` for TLS.

    Raises:
        ValueError: it is no such URL; no password is in the text.
    """
    scheme, _, place = url.partition("://")
    address, settings = _READER.read(place, is_tls=scheme == "rediss")
    name = _READER.name(settings, "quotas")
    _READER.refuse_others(settings)
    return RedisQuotaStore(address, name)
