"""For the tests of actors: what a model's end costs a server does not matter here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server frees memory when a model has gone. Here that would go through all that the packages of all tests hold,
    hundreds of times, for a quarter of a second each. The tests of that are in tests/backends and tests/e2e."""
    monkeypatch.setattr("actors.lifecycle.freed_memory.return_free_memory", lambda has_frozen: None)
