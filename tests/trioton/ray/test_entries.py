"""The directory's entries: reported, leaving, grown old."""

from __future__ import annotations

import pytest

from trioton.ray import entries
from trioton.ray.entries import Entries, Entry, as_json


def entry(name: str, application: str = "a") -> Entry:
    return Entry(name, "127.0.0.1", 1, 2, 3, "node", application)


def names(found: list[Entry]) -> list[str]:
    return [each.replica for each in found]


def test_requests_go_to_those_that_serve() -> None:
    known = Entries(10.0)
    for name in ("x", "y", "z"):
        known.report(entry(name), 0.0)
    known.report(entry("other", "b"), 0.0)
    known.leave("y", 1.0)
    known.remove("z")
    known.remove("never")
    known.leave("never", 1.0)
    assert names(known.serving(1.0)) == ["x", "other"]
    assert names(known.serving(1.0, "b")) == ["other"]


def test_one_that_is_not_reported_again_is_dropped() -> None:
    known = Entries(10.0)
    known.report(entry("x"), 0.0)
    known.report(entry("y"), 0.0)
    known.report(entry("x"), 8.0)
    assert names(known.serving(10.0)) == ["x", "y"]
    assert names(known.serving(10.5)) == ["x"]


def test_one_that_is_leaving_serves_again_when_it_says_so() -> None:
    known = Entries(10.0)
    known.report(entry("x"), 0.0)
    known.leave("x", 1.0)
    known.report(entry("x"), 2.0)
    assert names(known.serving(2.0)) == ["x"]


def test_their_number_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MOST_ENTRIES", 2)
    known = Entries(10.0)
    known.report(entry("x"), 0.0)
    known.report(entry("y"), 5.0)
    known.report(entry("x"), 5.0)
    with pytest.raises(ValueError, match="holds 2 entries already"):
        known.report(entry("z"), 5.0)
    known.report(entry("z"), 16.0)
    assert names(known.serving(16.0)) == ["z"]


def test_as_json() -> None:
    assert as_json(entry("x")) == {
        "replica": "x",
        "application": "a",
        "node": "node",
        "http": "127.0.0.1:1",
        "grpc": "127.0.0.1:2",
        "metrics": "127.0.0.1:3",
    }
