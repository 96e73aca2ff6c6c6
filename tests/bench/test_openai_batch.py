"""The measure of batches: on a real server, a few lines, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.openai_batch import Found, measure, report


@pytest.mark.slow
def test_a_small_batch_is_measured(tmp_path: Path) -> None:
    found = measure(50, tmp_path / "log")
    assert found.lines == 50
    assert 0 < found.read_seconds <= found.seconds
    assert found.resident_most >= found.resident_before > 0


def test_the_report() -> None:
    text = report(Found(1000, 2 << 20, 0.5, 0.1, 2.0, 0.3, 80 << 20, 90 << 20))
    for figure in ("a batch of 1000 lines, 2.0 MiB", " 4", "500", "300", "80", "90"):
        assert figure in text
