"""What is said where nothing is proposed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trioton.analyze.live.test_proposals import current, served
from trioton.analyze.flags import AnalyzeFlags
from trioton.analyze.live.command import LiveFindings, why_not
from trioton.perf.bounds import latency_bound


@pytest.mark.parametrize(("use", "is_told"), [(None, False), (0.3, False), (0.97, True)])
def test_full_processors_are_told_of(use: float | None, is_told: bool) -> None:
    """More instances would help otherwise."""
    seen = replace(served(500.0)[0], processor_use=use)
    text = why_not(LiveFindings("m", seen, current(), ()), AnalyzeFlags())
    assert ("the machine's processors are in use to 97%" in text) == is_told


def test_a_bound_that_is_kept() -> None:
    seen, _ = served(100.0)
    text = why_not(LiveFindings("m", seen, current(), ()), AnalyzeFlags(latency=latency_bound("p99:10s")))
    assert text.startswith("it keeps p99:10")
