"""The interface of response cache implementations; public as `trioton.caches`.

A *cache* is a class: one subclass of `Cache` for each implementation, found by name (`actors.cache.registry`). A
server makes one object of it from the settings that `--cache-config` gives:

    open → look_up and insert, any number at the same time → close

Keys are digests of 32 bytes that cover everything which can change an answer; values are whole encoded responses. A
cache may lose any entry at any time, but must not mix up keys or change values.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

from protocol.messages import Buffer


class CacheError(Exception):
    """The cache cannot be reached, or has failed. The request goes on without it."""


class Cache(abc.ABC):
    """Keeps values by their keys. A subclass is one kind of cache, one object of it the cache of one server.

    All methods are awaited on the server's Trio loop and must not block it; `look_up` and `insert` are called by any
    number of tasks at once. Each call is bounded in time by the caller, who may cancel it: the cache must then be able
    to take the next call.
    """

    is_shared: ClassVar[bool] = False
    """Whether entries outlive this server, or other servers use them too. If so, a model that is loaded again finds its
    entries as long as its files and configuration are the same; if not, each load starts with none."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Validate the settings; no I/O.

        Args:
            settings: the texts that `--cache-config` gives, by their keys.

        Raises:
            ValueError: one is missing, unknown or wrong; the text names it and what was expected.
        """
        if settings:
            raise ValueError(f"unknown setting '{next(iter(settings))}'")

    async def open(self) -> None:  # noqa: B027 (many have nothing to open)
        """Get ready. A server at the other end that cannot be reached now is no failure, but may be logged."""

    @abc.abstractmethod
    async def look_up(self, key: bytes) -> Buffer | None:
        """The value of a key, or None. The key has 32 bytes; the value must not be written to later.

        Raises:
            CacheError: it could not be looked up. The request is computed.
        """

    @abc.abstractmethod
    async def insert(self, key: bytes, value: bytes) -> bool:
        """Store a value, or drop it; False if the key exists already, whose value then stays.

        Raises:
            CacheError: it could not be stored. The request is answered all the same.
        """

    async def close(self) -> None:  # noqa: B027 (many have nothing to close)
        """Free everything. Called once, shielded, within a bounded time."""


def read_integer(settings: dict[str, str], key: str, default: int | None, *, minimum: int, maximum: int) -> int:
    """Take a whole number out of the settings, for `Cache.__init__`.

    Args:
        settings: a dictionary of them, which loses this one.
        key: which one.
        default: what it is where it is not there; None where it must be.
        minimum: the least that it may be.
        maximum: the most.

    Raises:
        ValueError: it is missing, no whole number, or out of range; the text names it.
    """
    text = settings.pop(key, None)
    if text is None:
        if default is None:
            raise ValueError(f"setting '{key}' is required")
        return default
    if not (text.isascii() and text.isdigit()) or not minimum <= int(text) <= maximum:
        raise ValueError(f"setting '{key}' expects a whole number from {minimum} to {maximum}, got '{text}'")
    return int(text)
