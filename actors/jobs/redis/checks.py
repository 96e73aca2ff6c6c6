"""What a Redis server must be for jobs to be kept there, and what it should be. Blocks."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import redis

from protocol.jobs.store import UnusableStore

logger = logging.getLogger(__name__)

OLDEST = (7, 0)


def check_server(client: redis.Redis) -> None:
    """Warn of settings with which jobs are lost when Redis ends. A server that tells its settings nobody is taken as
    it is.

    Raises:
        UnusableStore: it would lose jobs while it runs, or is too old.
        RedisError, OSError: it cannot be reached.
    """
    info: Any = client.info("server")
    version = str(info.get("redis_version", "0"))
    if _numbers(version) < OLDEST:
        raise UnusableStore(f"the job store needs Redis {OLDEST[0]}.{OLDEST[1]} or later, and this one is {version}")
    if info.get("redis_mode") == "cluster":
        raise UnusableStore("the job store needs a Redis server that is no cluster: one, or a primary with replicas")
    settings: dict[str, str] = {}
    with suppress(redis.ResponseError):  # hosted ones hide theirs
        settings = dict(client.config_get("maxmemory-policy", "appendonly", "appendfsync"))  # type: ignore[arg-type]
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy.startswith("allkeys"):
        raise UnusableStore(
            f"the Redis server of the job store drops keys when its memory is full (maxmemory-policy {policy}): "
            f"set it to noeviction, so that jobs are refused then instead of lost"
        )
    if settings.get("appendonly") == "no":
        logger.warning("the Redis server of the job store writes no log (appendonly no): jobs are lost when it ends")
    elif settings.get("appendfsync", "always") != "always":
        logger.warning(
            "the Redis server of the job store does not sync each write (appendfsync %s): jobs of the last second may "
            "be lost when its machine ends",
            settings["appendfsync"],
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
