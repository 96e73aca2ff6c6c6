"""Metrics of payload capture, where it is on."""

from __future__ import annotations

from collections.abc import Iterator

from actors.capture.capture import Capture
from trioton.metrics.families import Family, Sample, Series

_WRITTEN = Family("trioton_capture_written_total", "counter", "Number of captured requests that are in a file")
_DROPPED = Family("trioton_capture_dropped_total", "counter", "Number of requests that were to be captured and are not")


def capture_series(capture: Capture | None) -> Iterator[Series]:
    """Nothing without capture."""
    if capture is None:
        return
    yield Series(_WRITTEN, (), (Sample(capture.written),))
    for reason, count in capture.dropped.items():
        yield Series(_DROPPED, (("reason", reason),), (Sample(count),))
