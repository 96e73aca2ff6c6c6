"""Figures and profiles that are made up, for reports and rules."""

from __future__ import annotations

from typing import Any

from trioton.perf.figures import Figures
from trioton.perf_analyzer.profile import Profile


def figures(latencies: list[float], seconds: float = 1.0, batch: int = 1, **more: Any) -> Figures:
    """Requests of these latencies in milliseconds."""
    made = Figures(seconds=seconds, sent=len(latencies), succeeded=len(latencies), **more)
    made.inferences = batch * len(latencies)
    made.latency.record_all([round(each * 1e6) for each in latencies])
    made.lateness.record_all([20_000] * len(latencies))
    return made


def profile(level: float, latencies: list[float], **more: Any) -> Profile:
    is_rate = more.pop("is_rate", False)
    return Profile(level=level, is_rate=is_rate, figures=figures(latencies), **more)
