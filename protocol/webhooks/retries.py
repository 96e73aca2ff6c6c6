"""When a webhook is sent again, and when it is given up, by what its receiver has answered. Pure.

Source: Standard Webhooks 1.0, whose schedule this is: ten attempts over three days.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

SECOND, MINUTE, HOUR = 1.0, 60.0, 3600.0
# After the first attempt, the second …
DELAYS = (
    5 * SECOND,
    5 * MINUTE,
    30 * MINUTE,
    2 * HOUR,
    5 * HOUR,
    10 * HOUR,
    14 * HOUR,
    20 * HOUR,
    24 * HOUR,
)
# A delay is up to so much shorter or longer: receivers that come back are not asked by all at once.
JITTER = 0.2
MOST_RETRY_AFTER = 24 * HOUR
_GONE = 410


def is_taken(status: int) -> bool:
    return 200 <= status < 300


def is_refused_for_good(status: int) -> bool:
    """The receiver wants no more of it."""
    return status == _GONE


def retry_delay(attempt: int, random: float, retry_after: float = 0.0) -> float | None:
    """Seconds until the next attempt after so many; None where there is none. `random` is from 0 to 1."""
    if attempt > len(DELAYS):
        return None
    delay = DELAYS[attempt - 1] * (1 - JITTER + 2 * JITTER * random)
    return max(delay, min(retry_after, MOST_RETRY_AFTER))


def retry_after_seconds(text: str, now: float) -> float:
    """What `Retry-After` asks for; 0 where that is nothing."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return 0.0
