"""What a delivery sends: its body and headers, in the form of Standard Webhooks or of CloudEvents. Pure.

A delivery has the same body in every attempt; timestamp and signature are those of the attempt. Of a job it shows the
job; of a batch its id, in the form of OpenAI's webhooks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from protocol.jobs.batches.batch import BATCH_EVENTS, BATCH_KIND
from protocol.jobs.job_json import job_json
from protocol.jobs.webhook import Delivery, event_name
from protocol.webhooks.signing import signature

# Standard Webhooks asks for bodies of less than 20 kB.
MOST_BODY_BYTES = 20_000
_MOST_ERROR_CHARACTERS = 1000
_BATCH_EVENT_OF = {state: event for event, state in BATCH_EVENTS.items()}


def webhook_body(delivery: Delivery, *, is_cloud_event: bool = False) -> bytes:
    """A client's metadata and long errors are left out or cut where they are too much."""
    if delivery.job.kind == BATCH_KIND:
        named = {"id": delivery.job.id}
        return _encode(_cloud_event(delivery, named) if is_cloud_event else _openai(delivery, named))
    data = job_json(delivery.job)
    if "error" in data:
        data["error"]["message"] = data["error"]["message"][:_MOST_ERROR_CHARACTERS]
    form = _cloud_event if is_cloud_event else _standard
    body = _encode(form(delivery, data))
    if len(body) > MOST_BODY_BYTES and data.pop("metadata", None):
        body = _encode(form(delivery, data))
    return body


def webhook_headers(
    delivery: Delivery, body: bytes, secrets: Sequence[bytes], timestamp: int, *, is_cloud_event: bool = False
) -> list[tuple[str, str]]:
    return [
        ("Content-Type", "application/cloudevents+json" if is_cloud_event else "application/json"),
        ("webhook-id", delivery.id),
        ("webhook-timestamp", str(timestamp)),
        ("webhook-signature", signature(secrets, delivery.id, timestamp, body)),
    ]


def _standard(delivery: Delivery, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": _type(delivery), "timestamp": _time(delivery.created), "data": data}


def _openai(delivery: Delivery, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"evt_{delivery.id.removeprefix('msg_')}",
        "object": "event",
        "type": _type(delivery),
        "created_at": int(delivery.created),
        "data": data,
    }


def _cloud_event(delivery: Delivery, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": delivery.id,
        "source": "/v1/batches" if delivery.job.kind == BATCH_KIND else "/v2/jobs",
        "subject": delivery.job.id,
        "type": _type(delivery),
        "time": _time(delivery.created),
        "datacontenttype": "application/json",
        "data": data,
    }


def _type(delivery: Delivery) -> str:
    return _BATCH_EVENT_OF[delivery.state] if delivery.job.kind == BATCH_KIND else event_name(delivery.state)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
