"""Use by key: what each key of an auth keys file has used so far, for the metrics."""

from __future__ import annotations

from collections import Counter

# Keys that have numbers of their own, in the order of the file; all others are counted together.
MOST_NAMED = 100
OTHER = "other"


class Usage:
    """Sums of one key, or of all `other` ones. None of them ever falls, but `running`.

    Attributes:
        requests: that have ended and were not refused.
        running: that have not.
        refusals: by the limit that was reached.
    """

    __slots__ = ("bytes", "compute_seconds", "refusals", "requests", "running", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.running = 0
        self.tokens = 0.0
        self.compute_seconds = 0.0
        self.bytes = 0.0
        self.refusals: Counter[str] = Counter()
