"""Clients of a Redis server, for all parts that keep something there: the `redis` package's, which block; and the URLs
that say where it is.

Their calls are made in threads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

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


@dataclass(frozen=True, slots=True)
class UrlReader:
    """Reads what stands behind `redis://`; the fields are for what it raises, in which no password is.

    Attributes:
        what: is there, as `job store`.
        form: of the whole, with a scheme.
        timeout_ms: that a connection, and one reading or writing of it, may take where the URL does not say.
    """

    what: str
    form: str
    timeout_ms: int

    def read(self, text: str, *, is_tls: bool) -> tuple[RedisAddress, dict[str, str]]:
        """The address, and the settings that are left: those that are not about the connection.

        Raises:
            ValueError: it is no such URL.
        """
        try:
            url = urlsplit(f"redis://{text}")
            host, port = url.hostname, url.port
            given = parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
        except ValueError:
            raise ValueError(f"the place of the {self.what} in Redis is no URL; expected {self.form}") from None
        settings = dict(given)
        if not host or url.fragment or len(settings) != len(given):
            raise ValueError(f"the place of the {self.what} in Redis has no host, or too much; expected {self.form}")
        address = RedisAddress(
            host,
            port=6379 if port is None else port,
            db=self.integer("db", url.path.removeprefix("/") or "0", 0, 1 << 31),
            user=None if url.username is None else unquote(url.username) or None,
            password=None if url.password is None else unquote(url.password),
            is_tls=is_tls,
            ca_file=settings.pop("cacert", None),
            connect_seconds=self._timeout(settings, "connect_timeout"),
            socket_seconds=self._timeout(settings, "socket_timeout"),
        )
        return address, settings

    def name(self, settings: dict[str, str], default: str) -> str:
        """The setting `name`, which is taken out: what is kept under another is apart. Raises ValueError."""
        name = settings.pop("name", default)
        if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
            raise ValueError(
                f"'name' of the {self.what} in Redis: expected letters, digits, '-', '_', '.', got '{name:.64}'"
            )
        return name

    def refuse_others(self, settings: dict[str, str]) -> None:
        """Raises ValueError where settings are left that nobody has taken."""
        if settings:
            raise ValueError(
                f"the {self.what} in Redis has no setting '{next(iter(settings)):.64}'; expected {self.form}"
            )

    def integer(self, name: str, text: str, minimum: int, maximum: int) -> int:
        """Raises ValueError."""
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise ValueError(
                f"'{name}' of the {self.what} in Redis: expected an integer from {minimum} to {maximum}, got "
                f"'{text:.64}'"
            )
        return value

    def _timeout(self, settings: dict[str, str], name: str) -> float:
        return self.integer(name, settings.pop(name, str(self.timeout_ms)), 1, 3_600_000) / 1000


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
