"""Metrics of jobs, where the server takes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from actors.jobs.figures import RunnerFigures, WebhookFigures
from protocol.jobs.states import ITEM_STATES, JobState
from protocol.jobs.store import StoreFigures
from trioton.metrics.families import Family, Sample, Series, gauge

_JOBS = Family("trioton_jobs", "gauge", "Number of jobs that are kept, by their state")
_ROWS = Family("trioton_job_rows_total", "counter", "Number of requests of jobs that have ended, by how")
_RETRIES = Family("trioton_job_retries_total", "counter", "Number of times that a request of a job is tried again")
_WEBHOOKS = Family(
    "trioton_job_webhooks_total", "counter", "Number of webhooks that were delivered, or given up, by which"
)
_WEBHOOK_FAILURES = Family(
    "trioton_job_webhook_failures_total", "counter", "Number of attempts to deliver a webhook that have failed"
)


def job_series(figures: Callable[[], RunnerFigures | None]) -> Iterator[Series]:
    """Nothing where there are none. What the store knows is a second old at most."""
    now = figures()
    if now is None:
        return
    if now.store is not None:
        yield from _store_series(now.store)
    for state in ITEM_STATES:
        if state.is_ended:
            yield Series(_ROWS, (("state", state),), (Sample(now.items.get(state, 0)),))
    yield Series(_RETRIES, (), (Sample(now.retries),))
    if now.webhooks is not None:
        yield from _webhook_series(now.webhooks)


def _webhook_series(webhooks: WebhookFigures) -> Iterator[Series]:
    for outcome, count in (("delivered", webhooks.delivered), ("abandoned", webhooks.abandoned)):
        yield Series(_WEBHOOKS, (("outcome", outcome),), (Sample(count),))
    yield Series(_WEBHOOK_FAILURES, (), (Sample(webhooks.failures),))


def _store_series(store: StoreFigures) -> Iterator[Series]:
    for state in JobState:
        yield Series(_JOBS, (("state", state),), (Sample(store.jobs[state]),))
    age = max(time.time() - store.oldest, 0.0) if store.oldest else 0.0
    yield gauge("trioton_job_oldest_seconds", "Age of the oldest job that has not ended, in seconds", age)
    yield gauge("trioton_job_store_bytes", "Bytes of the requests and results of all jobs", store.byte_size)
