"""Where a Redis job store is: the URL that `--jobs-store` gives."""

from __future__ import annotations

from dataclasses import dataclass

from actors.jobs.redis.store import RedisStore
from actors.redis_client import RedisAddress, UrlReader
from protocol.jobs.store import Limits, UnusableStore

# Milliseconds that a connection, and one reading or writing of it, may take.
TIMEOUT_MS = 5000
# Servers that do not say so often that they are there have ended.
LEASE_SECONDS = 10
_SHORTEST_LEASE, _LONGEST_LEASE = 1, 3600
_FORM = (
    "redis://[<user>:<password>@]<host>[:<port>][/<db>][?name=…&cacert=…&lease=…&connect_timeout=…&socket_timeout=…]"
)
_READER = UrlReader("job store", _FORM, TIMEOUT_MS)


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
        address, settings = _READER.read(text, is_tls=is_tls)
        name = _READER.name(settings, "jobs")
        lease = settings.pop("lease", str(LEASE_SECONDS))
        lease_seconds = _READER.integer("lease", lease, _SHORTEST_LEASE, _LONGEST_LEASE)
        _READER.refuse_others(settings)
    except ValueError as error:
        raise UnusableStore(str(error)) from None
    return RedisPlace(address, name, lease_seconds)
