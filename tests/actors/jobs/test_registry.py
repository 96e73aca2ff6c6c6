"""Job stores by their scheme."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from actors.jobs import registry
from actors.jobs.sqlite.store import SqliteStore
from protocol.jobs.store import Limits, UnusableStore

LIMITS = Limits()
MADE: list[tuple[str, Limits]] = []


def make(place: str, limits: Limits) -> SqliteStore:
    """As a package would offer it."""
    MADE.append((place, limits))
    if place == "broken":
        raise RuntimeError("it is broken")
    return SqliteStore(Path(place), limits)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Offer entry points as installed packages do."""

    def offered(*values: str) -> None:
        points = [metadata.EntryPoint("own", value, registry.GROUP) for value in values]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)

    return offered


@pytest.mark.parametrize("place", ["some/folder", "/some/folder", "sqlite://some/folder"])
def test_a_folder_is_of_sqlite(place: str) -> None:
    assert isinstance(registry.make_store(place, LIMITS), SqliteStore)


def test_an_installed_one_gets_what_is_behind_its_scheme(offer: Callable[..., None]) -> None:
    offer(f"{__name__}:make")
    registry.make_store("own://host:1/x", LIMITS)
    assert MADE[-1] == ("host:1/x", LIMITS)
    with pytest.raises(UnusableStore, match="cannot be made: RuntimeError: it is broken"):
        registry.make_store("own://broken", LIMITS)


def test_one_that_cannot_be_had_is_named(offer: Callable[..., None]) -> None:
    offer()
    with pytest.raises(UnusableStore, match="unknown job store 'own'; installed are: redis, rediss, sqlite"):
        registry.make_store("own://x", LIMITS)
    offer("no.such:module")
    with pytest.raises(UnusableStore, match="needs what is not installed: No module named 'no'"):
        registry.make_store("own://x", LIMITS)
    offer("a:a", "b:b")
    with pytest.raises(UnusableStore, match="offered more than once: a:a, b:b; keep one"):
        registry.make_store("own://x", LIMITS)
