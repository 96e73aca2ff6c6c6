"""What a delivery sends: its body and headers, in the form of Standard Webhooks or of CloudEvents. Pure.

A delivery has the same body in every attempt; timestamp and signature are those of the attempt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from protocol.jobs.job_json import job_json
from protocol.jobs.webhook import Delivery, event_name
from protocol.webhooks.signing import signature

# Standard Webhooks asks for bodies of less than 20 kB.
MOST_BODY_BYTES = 20_000
_MOST_ERROR_CHARACTERS = 1000


def webhook_body(delivery: Delivery, *, is_cloud_event: bool = False) -> bytes:
    """A client's metadata and long errors are left out or cut where they are too much."""
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
    return {"type": event_name(delivery.state), "timestamp": _time(delivery.created), "data": data}


def _cloud_event(delivery: Delivery, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": delivery.id,
        "source": "/v2/jobs",
        "subject": delivery.job.id,
        "type": event_name(delivery.state),
        "time": _time(delivery.created),
        "datacontenttype": "application/json",
        "data": data,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
