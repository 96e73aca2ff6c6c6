"""Counts of requests in flight."""

from __future__ import annotations

from actors.model.request_counts import MOST_KEPT, RequestCounts


def test_versions_without_requests_are_not_counted() -> None:
    counts = RequestCounts()
    assert not counts
    first, second, other = counts.begin("m", 1), counts.begin("m", 2), counts.begin("n", 1)
    counts.begin("m", 1)
    assert counts.by_version() == {("m", 1): 2, ("m", 2): 1, ("n", 1): 1}
    assert (counts.of_model("m"), counts.of_model("n"), counts.of_model("o")) == (3, 1, 0)
    second.waiting -= 1
    other.waiting -= 1
    assert counts
    assert counts.by_version() == {("m", 1): 2}
    first.waiting -= 2
    assert (bool(counts), counts.by_version(), counts.of_model("m")) == (False, {}, 0)


def test_the_count_of_a_version_is_used_again_until_there_are_too_many() -> None:
    counts = RequestCounts()
    idle, busy = counts.begin("idle", 1), counts.begin("busy", 1)
    idle.waiting -= 1
    assert counts.begin("idle", 1) is idle
    idle.waiting -= 1
    for number in range(MOST_KEPT):
        counts.begin(f"m{number}", 1).waiting -= 1
    assert counts.begin("busy", 1) is busy, "it has a request"
    assert counts.begin("idle", 1) is not idle
    assert counts.by_version() == {("busy", 1): 2, ("idle", 1): 1}


def test_where_very_many_have_requests_as_many_more_are_kept() -> None:
    counts = RequestCounts()
    for number in range(3 * MOST_KEPT):
        counts.begin(f"busy{number}", 1)
    for number in range(2 * MOST_KEPT):
        counts.begin(f"idle{number}", 1).waiting -= 1
    kept = [counts.begin(f"idle{number}", 1) for number in range(2 * MOST_KEPT)]
    assert [counts.begin(f"idle{number}", 1) for number in range(2 * MOST_KEPT)] == kept
    assert len(counts.by_version()) == 5 * MOST_KEPT
