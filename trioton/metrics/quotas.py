"""Metrics of quotas that several servers have in common: whether what was used is exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from actors.quotas.store import ExchangeFigures
from trioton.metrics.families import Family, Sample, Series, gauge

_EXCHANGES = Family(
    "trioton_quota_exchanges_total", "counter", "Number of exchanges with the store of quotas, by how they went"
)


def quota_series(figures: Callable[[], ExchangeFigures | None]) -> Iterator[Series]:
    """Nothing where quotas are not shared."""
    now = figures()
    if now is None:
        return
    for outcome, count in (("success", now.succeeded), ("failure", now.failed)):
        yield Series(_EXCHANGES, (("outcome", outcome),), (Sample(count),))
    yield gauge("trioton_quota_store_up", "1 if the last exchange with the store of quotas succeeded", float(now.is_up))
    yield gauge("trioton_quota_shared_limits", "Limits of keys that are exchanged, since they are in use", now.limits)
