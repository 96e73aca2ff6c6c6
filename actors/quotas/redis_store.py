"""The quota store in a Redis server (`--quota-store redis://…`): a key for each limit that is in use, which goes by
itself when all of the limit is free again, or when its leases have ended; all of an exchange is one run of a script."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import redis
import trio

from actors.quotas.store import StoreAway
from actors.redis_client import RedisAddress, UrlReader, make_client
from protocol.errors import text_of
from protocol.quotas.leases import LEASE_SECONDS, Claim, Grant
from protocol.quotas.shared import Push

EXCHANGE_SCRIPT, LEASE_SCRIPT = (
    (files(__package__) / name).read_text("utf-8") for name in ("exchange.lua", "lease.lua")
)
# Exchanges at the same time, and of those all but two were given up: their threads end by and by.
_CONNECTIONS = 4
_FORM = "redis://[<user>:<password>@]<host>[:<port>][/<db>][?name=…&cacert=…&connect_timeout=…&socket_timeout=…]"
_READER = UrlReader("quota store", _FORM, timeout_ms=500)

T = TypeVar("T")


class RedisQuotaStore:
    """Implements `store.QuotaStore`, for one server. Servers with the same `name` share; its braces put all keys into
    one slot."""

    def __init__(self, address: RedisAddress, name: str) -> None:
        self._prefix = f"trioton:{{{name}}}:"
        # Not tried again by the client: what is used would count twice.
        self._client = make_client(address, retries=0)
        self._exchange: Any = self._client.register_script(EXCHANGE_SCRIPT)
        self._lease: Any = self._client.register_script(LEASE_SCRIPT)
        self._server = secrets.token_hex(8)
        self._limiter = trio.CapacityLimiter(_CONNECTIONS)

    async def exchange(self, pushes: Sequence[Push]) -> Sequence[float]:
        arguments = [number for push in pushes for number in _arguments(push)]

        def call() -> list[float]:
            return [float(level) for level in self._exchange(keys=self._keys(pushes), args=arguments)]

        return await self._call(call)

    async def lease(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        arguments: list[str | int] = [self._server, round(LEASE_SECONDS * 1000)]
        arguments += [number for each in claims for number in (each.held, each.need, each.want, each.limit)]

        def call() -> list[Grant]:
            found = self._lease(keys=self._keys(claims), args=arguments)
            return [Grant(lease, leased, held, bool(is_wanted)) for lease, leased, held, is_wanted in found]

        return await self._call(call)

    def _keys(self, told: Sequence[Push] | Sequence[Claim]) -> list[str]:
        return [self._prefix + each.name for each in told]

    async def _call(self, call: Callable[[], T]) -> T:
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
