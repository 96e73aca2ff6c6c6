"""When a webhook is sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.webhooks.retries import (
    DELAYS,
    HOUR,
    JITTER,
    is_refused_for_good,
    is_taken,
    retry_after_seconds,
    retry_delay,
)


def test_ten_attempts_over_three_days() -> None:
    delays = [retry_delay(attempt, 0.5) for attempt in range(1, 11)]
    assert delays[:2] == [5.0, 300.0]
    assert delays[-1] is None
    assert len(delays) == 10
    assert 3 * 24 * HOUR < sum(DELAYS) < 4 * 24 * HOUR


@given(st.integers(1, len(DELAYS)), st.floats(0, 1), st.floats(0, 1e12))
def test_delays(attempt: int, random: float, retry_after: float) -> None:
    delay = retry_delay(attempt, random, retry_after)
    assert delay is not None
    assert delay >= DELAYS[attempt - 1] * (1 - JITTER) * 0.999
    assert delay <= max(DELAYS[attempt - 1] * (1 + JITTER), 24 * HOUR) * 1.001
    assert delay >= min(retry_after, 24 * HOUR)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0.0),
        ("7", 7.0),
        ("-7", 0.0),
        ("soon", 0.0),
        ("9" * 100, 999_999_999.0),
        ("Tue, 24 Nov 2026 16:00:10 GMT", 10.0),
        ("Tue, 24 Nov 2026 15:00:00 GMT", 0.0),
        ("Tue, 99 Nov 2026 15:00:00 GMT", 0.0),
    ],
)
def test_retry_after(text: str, seconds: float) -> None:
    now = 1_795_536_000.0  # Tue, 24 Nov 2026 16:00:00 GMT
    assert retry_after_seconds(text, now) == seconds


@given(st.text(max_size=40))
def test_any_retry_after(text: str) -> None:
    assert retry_after_seconds(text, 0.0) >= 0


def test_statuses() -> None:
    assert [status for status in (199, 200, 202, 299, 301, 308, 404, 410, 500) if is_taken(status)] == [200, 202, 299]
    assert [status for status in range(100, 600) if is_refused_for_good(status)] == [410]
