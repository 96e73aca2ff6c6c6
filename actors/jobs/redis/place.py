"""Where a Redis job store is: the URL that `--jobs-store` gives."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from actors.jobs.redis.store import RedisStore
from actors.redis_client import RedisAddress
from protocol.jobs.store import Limits, UnusableStore

# Milliseconds that a connection, and one reading or writing of it, may take.
TIMEOUT_MS = 5000
# Servers that do not say so often that they are there have ended.
LEASE_SECONDS = 10
_SHORTEST_LEASE, _LONGEST_LEASE = 1, 3600
_FORM = (
    "redis://[<user>:<password>@]<host>[:<port>][/<db>][?name=…&cacert=…&lease=…&connect_timeout=…&socket_timeout=…]"
)


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """Attributes:
    name: of these jobs: those of others in the same Redis server are apart.
    lease_seconds: after so long a server that is silent has ended.
    """

    address: RedisAddress
    name: str = "jobs"
    lease_seconds: int = LEASE_SECONDS


def make_redis_store(place: str, limits: Limits) -> RedisStore:
    """Raises UnusableStore."""
    return RedisStore(*_parts(parse_place(place, is_tls=False)), limits)


def make_rediss_store(place: str, limits: Limits) -> RedisStore:
    """Over TLS. Raises UnusableStore."""
    return RedisStore(*_parts(parse_place(place, is_tls=True)), limits)


def _parts(place: RedisPlace) -> tuple[RedisAddress, str, float]:
    return place.address, place.name, float(place.lease_seconds)


def parse_place(text: str, *, is_tls: bool) -> RedisPlace:
    """What stands behind `redis://`. No password is in what it raises.

    Raises:
        UnusableStore: it is no such place.
    """
    try:
        url = urlsplit(f"redis://{text}")
        host, port = url.hostname, url.port
        given = parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
    except ValueError:
        raise UnusableStore(f"the place of the job store in Redis is no URL; expected {_FORM}") from None
    settings = dict(given)
    if not host or url.fragment or len(settings) != len(given):
        raise UnusableStore(f"the place of the job store in Redis has no host, or too much; expected {_FORM}")
    name = settings.pop("name", "jobs")
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise UnusableStore(
            f"'name' of the job store in Redis: expected letters, digits, '-', '_', '.', got '{name:.64}'"
        )
    address = RedisAddress(
        host,
        port=6379 if port is None else port,
        db=_integer("db", url.path.removeprefix("/") or "0", 0, 1 << 31),
        user=None if url.username is None else unquote(url.username) or None,
        password=None if url.password is None else unquote(url.password),
        is_tls=is_tls,
        ca_file=settings.pop("cacert", None),
        connect_seconds=_timeout(settings, "connect_timeout"),
        socket_seconds=_timeout(settings, "socket_timeout"),
    )
    lease = _integer("lease", settings.pop("lease", str(LEASE_SECONDS)), _SHORTEST_LEASE, _LONGEST_LEASE)
    if settings:
        raise UnusableStore(f"the job store in Redis has no setting '{next(iter(settings)):.64}'; expected {_FORM}")
    return RedisPlace(address, name, lease)


def _timeout(settings: dict[str, str], name: str) -> float:
    return _integer(name, settings.pop(name, str(TIMEOUT_MS)), 1, 3_600_000) / 1000


def _integer(name: str, text: str, minimum: int, maximum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if not minimum <= value <= maximum:
        raise UnusableStore(
            f"'{name}' of the job store in Redis: expected an integer from {minimum} to {maximum}, got '{text:.64}'"
        )
    return value
