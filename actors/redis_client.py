"""Clients of a Redis server, for all parts that keep something there: the `redis` package's, which block.

Their calls are made in threads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# Read where the settings do not say, so that no password need be on a command line; the names are Triton's.
USER_VARIABLE = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE = "TRITONCACHE_REDIS_PASSWORD"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a Redis server is, and how it is spoken to. Where user or password is not there, the environment has it."""

    host: str
    port: int = 6379
    db: int = 0
    user: str | None = None
    password: str | None = None
    is_tls: bool = False
    ca_file: str | None = None
    connect_seconds: float = 0.5
    socket_seconds: float = 0.5


def make_client(address: RedisAddress, *, retries: int = 1) -> redis.Redis:
    """No I/O. A call is made so many times more where its connection was closed meanwhile, or breaks."""
    more: dict[str, Any] = {}
    if address.ca_file is not None:
        more["ssl_ca_certs"] = address.ca_file
    return redis.Redis(
        host=address.host,
        port=address.port,
        db=address.db,
        username=os.environ.get(USER_VARIABLE) if address.user is None else address.user,
        password=os.environ.get(PASSWORD_VARIABLE) if address.password is None else address.password,
        socket_connect_timeout=address.connect_seconds,
        socket_timeout=address.socket_seconds,
        retry=Retry(NoBackoff(), retries),
        ssl=address.is_tls,
        protocol=2,  # whose answers are the same in all versions of the package
        **more,
    )
