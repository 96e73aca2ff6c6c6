"""Figures of a span: sums, and what goes from process to process."""

from __future__ import annotations

import json

from trioton.perf.figures import OTHER_ERRORS, Figures, joined


def some(count: int, seconds: float = 1.0) -> Figures:
    made = Figures(seconds=seconds, sent=count, succeeded=count, in_flight_seconds=count * 0.25)
    made.latency.record_all([250_000_000] * count)
    made.count_error("refused")
    return made


def test_spans_that_follow_each_other_add_up() -> None:
    whole = joined([some(4), some(2)])
    assert (whole.seconds, whole.succeeded, whole.rate, whole.errors) == (2, 6, 3, {"refused": 2})
    assert whole.latency.count == 6


def test_senders_share_the_time() -> None:
    whole = some(4)
    whole.add(some(2))
    assert (whole.seconds, whole.rate, whole.in_flight) == (1, 6, 1.5)


def test_figures_go_through_json() -> None:
    assert Figures.from_json(json.loads(json.dumps(some(3).to_json()))) == some(3)


def test_texts_of_errors_are_bounded() -> None:
    made = Figures()
    for number in range(100):
        made.count_error(f"request {number} failed")
    assert len(made.errors) == 17
    assert made.errors[OTHER_ERRORS] == 84
    assert made.failed == 100
