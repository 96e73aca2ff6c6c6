"""The Redis cache against a real server: entries, expiry, wrong settings, an outage and its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from actors.cache.interface import CacheError
from actors.cache.redis import KEY_PREFIX, RedisCache
from tests.actors.cache.redis_server import RedisServer, needs_redis_server

pytestmark = [needs_redis_server, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


def settings(server: RedisServer, **more: str) -> dict[str, str]:
    return {"host": "127.0.0.1", "port": str(server.port), **more}


async def test_entries_are_found_again_also_by_another_server(server: RedisServer) -> None:
    one, other = RedisCache(settings(server)), RedisCache(settings(server))
    await one.open()
    key, value = bytes(range(32)), bytes(range(256)) * 1000
    assert await one.look_up(key) is None
    assert await one.insert(key, value) is True
    assert await other.look_up(key) == value
    assert await other.insert(key, b"another") is False
    assert await one.look_up(key) == value
    await one.close()
    await other.close()


async def test_entries_expire_if_that_is_wanted(server: RedisServer) -> None:
    cache = RedisCache(settings(server, ttl="100"))
    await cache.insert(b"k", b"v")
    with redis.Redis(port=server.port) as client:
        assert 0 < int(client.ttl(KEY_PREFIX + b"k")) <= 100
    await cache.close()


async def test_databases_are_apart(server: RedisServer) -> None:
    one, other = RedisCache(settings(server)), RedisCache(settings(server, db="1"))
    await one.insert(b"apart", b"v")
    assert await other.look_up(b"apart") is None
    await one.close()
    await other.close()


async def test_an_outage_is_an_error_and_ends_by_itself(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as running:
        cache = RedisCache(settings(running, connect_timeout="200"))
        await cache.insert(b"k", b"v")
        running.stop()
        for call in (cache.look_up(b"k"), cache.insert(b"x", b"v"), cache.open()):
            with pytest.raises(CacheError, match="ConnectionError"):
                await call
        running.start()
        assert await cache.look_up(b"k") is None
        assert await cache.insert(b"k", b"v") is True
        await cache.close()


async def test_a_wrong_password_is_an_error(server: RedisServer) -> None:
    cache = RedisCache(settings(server, user="nobody", password="wrong"))
    with pytest.raises(CacheError):
        await cache.open()
    await cache.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "setting 'host' is required"),
        ({"host": "h", "port": "0"}, "setting 'port' expects a whole number from 1 to 65535, got '0'"),
        ({"host": "h", "pool_size": "x"}, "setting 'pool_size'"),
        ({"host": "h", "tls_enabled": "maybe"}, "setting 'tls_enabled' expects true or false, got 'maybe'"),
        ({"host": "h", "nonsense": "1"}, "unknown setting 'nonsense'"),
    ],
)
def test_wrong_settings(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RedisCache(given)
