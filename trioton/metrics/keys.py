"""Metrics of the keys of an auth keys file: what each has used, and what it was refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from protocol.quotas.usage import Usage
from trioton.metrics.families import Family, Sample, Series

_SUMS: tuple[tuple[Family, Callable[[Usage], float]], ...] = tuple(
    (Family(f"trioton_key_{name}_total", "counter", text), value)
    for name, text, value in (
        (
            "requests",
            "Number of inference requests of a key that were taken and have ended",
            lambda usage: usage.requests,
        ),
        ("tokens", "Number of tokens of prompts and answers of language models", lambda usage: usage.tokens),
        (
            "compute_seconds",
            "Time that models have computed for a key, in seconds",
            lambda usage: usage.compute_seconds,
        ),
        ("bytes", "Contents of requests and responses of a key, in bytes", lambda usage: usage.bytes),
    )
)
_REFUSALS = Family(
    "trioton_key_refusals_total", "counter", "Number of inference requests that a quota has refused, by its limit"
)
_RUNNING = Family("trioton_key_running_requests", "gauge", "Number of inference requests of a key that have not ended")


def key_series(usage_by_key: Callable[[], Mapping[str, Usage]]) -> Iterator[Series]:
    """Nothing without an auth keys file."""
    by_key = usage_by_key()
    for family, value in _SUMS:
        for key, usage in by_key.items():
            yield Series(family, (("key", key),), (Sample(value(usage)),))
    for key, usage in by_key.items():
        for limit, count in sorted(usage.refusals.items()):
            yield Series(_REFUSALS, (("key", key), ("limit", limit)), (Sample(count),))
    for key, usage in by_key.items():
        yield Series(_RUNNING, (("key", key),), (Sample(usage.running),))
