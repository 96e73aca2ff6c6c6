"""Places of job stores in Redis."""

from __future__ import annotations

import pytest

from actors.jobs.redis.place import RedisPlace, parse_place
from actors.jobs.redis.store import RedisStore
from actors.jobs.registry import make_store
from actors.redis_client import RedisAddress
from protocol.jobs.store import Limits, SharedJobStore, UnusableStore


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host", RedisPlace(RedisAddress("host", connect_seconds=5.0, socket_seconds=5.0))),
        (
            "ann:p%40ss@host:1/2?name=blue&lease=3&connect_timeout=100&socket_timeout=200",
            RedisPlace(
                RedisAddress("host", 1, 2, user="ann", password="p@ss", connect_seconds=0.1, socket_seconds=0.2),
                "blue",
                3,
            ),
        ),
        (
            ":p@[::1]?cacert=/ca.pem",
            RedisPlace(RedisAddress("::1", password="p", ca_file="/ca.pem", connect_seconds=5.0, socket_seconds=5.0)),
        ),
    ],
)
def test_a_place_and_what_it_says(text: str, place: RedisPlace) -> None:
    assert parse_place(text, is_tls=False) == place


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no host"),
        ("host:port", "is no URL"),
        ("host#x", "or too much"),
        ("host?lease=1&lease=2", "or too much"),
        ("host?name", "is no URL"),
        ("host/x", "'db' of the job store in Redis: expected an integer from 0 to 2147483648, got 'x'"),
        ("host?lease=0", "'lease' of the job store in Redis: expected an integer from 1 to 3600, got '0'"),
        ("host?name={a}", "'name' of the job store in Redis: expected letters, digits"),
        ("ann:secret@host?colour=red", "has no setting 'colour'"),
    ],
)
def test_what_is_no_place(text: str, reason: str) -> None:
    with pytest.raises(UnusableStore, match=reason) as caught:
        parse_place(text, is_tls=False)
    assert "secret" not in str(caught.value)


def test_the_registry_has_it_with_and_without_tls() -> None:
    for scheme, is_tls in (("redis", False), ("rediss", True)):
        store = make_store(f"{scheme}://host", Limits())
        assert isinstance(store, RedisStore)
        assert isinstance(store, SharedJobStore)
        assert store._address.is_tls is is_tls
