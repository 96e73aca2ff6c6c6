"""Finding caches by name: our own, those of other packages, and what goes wrong with these."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from actors.cache import registry
from actors.cache.interface import Cache
from actors.cache.local import LocalCache
from actors.cache.registry import UnusableCache, find_cache


class Other(LocalCache):
    pass


def offer(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Let these be the entry points of the installed packages."""
    points = EntryPoints(EntryPoint(name.rstrip("_"), value, registry.GROUP) for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))


def test_our_own_need_no_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    assert find_cache("local") is LocalCache


def test_another_package_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, other=f"{__name__}:Other")
    assert find_cache("other") is Other


def test_an_extra_one_wins() -> None:
    assert find_cache("local", {"local": Other}) is Other


@pytest.mark.parametrize(
    ("offered", "text"),
    [
        ({}, "unknown cache 'c'; installed are: local, redis"),
        ({"c": "a:B", "c_": "d:E"}, "cache 'c' is offered more than once: a:B, d:E; keep one"),
        ({"c": "no_such_module_here:B"}, "needs what is not installed: No module named 'no_such_module_here'"),
        ({"c": f"{__name__}:Missing"}, "failed when it was imported: AttributeError"),
        ({"c": "builtins:int"}, "is no subclass of trioton.caches.Cache"),
    ],
)
def test_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch, offered: dict[str, str], text: str) -> None:
    offer(monkeypatch, **offered)
    with pytest.raises(UnusableCache, match=text):
        find_cache("c")


def test_redis_without_its_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "actors.cache.redis", raising=False)
    with pytest.raises(UnusableCache, match=r"pip install 'trioton\[redis\]'"):
        find_cache("redis")


def test_the_interface_refuses_unknown_settings() -> None:
    class Plain(Cache):
        async def look_up(self, key: bytes) -> bytes | None:
            return None

        async def insert(self, key: bytes, value: bytes) -> bool:
            return True

    Plain({})
    with pytest.raises(ValueError, match="unknown setting 'a'"):
        Plain({"a": "b"})
