"""Bodies of webhooks: the job as its client sees it, and no more than a receiver has to take."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from protocol.jobs.batches.batch import Batch, BatchState
from protocol.jobs.job import Counts, ItemError, Job
from protocol.jobs.job_json import job_json
from protocol.jobs.states import JobState
from protocol.jobs.webhook import Delivery
from protocol.jobs.webhook_messages import MOST_BODY_BYTES, webhook_body, webhook_headers

JOB = Job("job_1", "ann", "m", -1, JobState.SUCCEEDED, Counts(succeeded=1), 1.0, 2.0, metadata={"a": "ä"})
DELIVERY = Delivery("msg_1", "ann", "https://a/", "https://a", JobState.SUCCEEDED, JOB, 1_795_536_000.5, 1)


def test_a_message_and_its_headers() -> None:
    body = webhook_body(DELIVERY)
    assert json.loads(body) == {
        "type": "job.succeeded",
        "timestamp": "2026-11-24T16:00:00.500Z",
        "data": job_json(JOB),
    }
    headers = dict(webhook_headers(DELIVERY, body, [b"s" * 24], 7))
    assert headers.pop("webhook-signature").startswith("v1,")
    assert headers == {"Content-Type": "application/json", "webhook-id": "msg_1", "webhook-timestamp": "7"}


@pytest.mark.parametrize("is_cloud_event", [False, True])
def test_what_is_too_long_is_left_out(is_cloud_event: bool) -> None:
    metadata = {f"{number}" * 256: "ä\ud800" * 256 for number in range(9)}
    job = replace(JOB, metadata=metadata, error=ItemError("INTERNAL", "x" * 100_000))
    body = webhook_body(replace(DELIVERY, job=job), is_cloud_event=is_cloud_event)
    data = json.loads(body)["data"]
    assert len(body) < MOST_BODY_BYTES
    assert data["id"] == "job_1"
    assert "metadata" not in data
    assert data["error"] == {"kind": "INTERNAL", "message": "x" * 1000}


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (BatchState.COMPLETED, "batch.completed"),
        (BatchState.FAILED, "batch.failed"),
        (BatchState.EXPIRED, "batch.expired"),
        (BatchState.CANCELLED, "batch.cancelled"),
    ],
)
def test_the_end_of_a_batch_in_the_form_of_openai(state: BatchState, event: str) -> None:
    batch = Batch("batch_1", "ann", "/v1/completions", "file-1", "p", 1.0, 2.0, state=state, times={state: 5.0})
    job = batch.as_ended_job()
    delivery = replace(DELIVERY, job=job, state=job.state)
    assert json.loads(webhook_body(delivery)) == {
        "id": "evt_1",
        "object": "event",
        "type": event,
        "created_at": 1_795_536_000,
        "data": {"id": "batch_1"},
    }
    cloud_event = json.loads(webhook_body(delivery, is_cloud_event=True))
    assert (cloud_event["type"], cloud_event["source"]) == (event, "/v1/batches")
    assert (cloud_event["subject"], cloud_event["data"]) == ("batch_1", {"id": "batch_1"})
