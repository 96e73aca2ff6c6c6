"""Errors of Redis as the job store's callers are told them."""

from __future__ import annotations

import redis

from protocol.errors import InsufficientStorage, Internal, ServerError, Unavailable, text_of

# Of answers that will be others by and by: it starts, is a replica for now, or is at work.
_PASSING = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN")


class Disconnected(Unavailable):
    """Redis cannot be reached, or has not answered: whether the call was made is not known."""


def server_error(error: Exception) -> ServerError:
    """What a call that failed so raises."""
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)):
        return Disconnected(f"the Redis server of the job store cannot be reached: {text_of(error)}")
    text = str(error)
    if text.startswith(("OOM", "command not allowed when used memory")):
        return InsufficientStorage("the Redis server of the job store has no memory left (its 'maxmemory')")
    if text.startswith("MISCONF"):
        return InsufficientStorage("the Redis server of the job store cannot write to its disk")
    if text.startswith(_PASSING) or isinstance(
        error, redis.exceptions.BusyLoadingError | redis.exceptions.ReadOnlyError
    ):
        return Unavailable(f"the Redis server of the job store takes no changes now: {text:.200}")
    return Internal(f"the job store failed: {text_of(error):.500}")
