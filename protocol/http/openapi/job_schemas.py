"""OpenAPI component schemas of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from protocol.http.codec.jobs import MAX_ITEMS, MAX_METADATA
from protocol.jobs.links import MOST_SECONDS
from protocol.jobs.source import OUTPUT_FORMATS, DataFormat
from protocol.jobs.states import JobState
from protocol.jobs.webhook import EVENT_STATES, event_name

Schema: TypeAlias = dict[str, Any]

_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SECONDS: Schema = {"type": "number", "description": "In seconds since the epoch."}
_EVENT: Schema = {"type": "string", "enum": [event_name(state) for state in EVENT_STATES]}
_METADATA: Schema = {"type": "object", "additionalProperties": _STRING, "maxProperties": MAX_METADATA}


def job_schemas(prefix: str) -> dict[str, Schema]:
    """By their names; `prefix` is that of references."""
    counts = ("total", "queued", "running", "succeeded", "failed", "cancelled", "expired")
    job = {
        "id": _STRING,
        "object": _STRING,
        "state": {"type": "string", "enum": list(JobState)},
        "counts": _object(dict.fromkeys(counts, _COUNT), *counts),
        "model_name": _STRING,
        "model_version": _STRING,
        "created_at": _SECONDS,
        "started_at": _SECONDS,
        "ended_at": _SECONDS,
        "expires_at": _SECONDS,
        "bytes": {**_COUNT, "description": "Of its requests and results."},
        "error": _object({"kind": _STRING, "message": _STRING}, "kind", "message"),
        "metadata": _METADATA,
        "input": {**_place(DataFormat), "description": "Where its requests come from, if not from its own request."},
        "output": {
            **_object({"url": _STRING, "format": _format(OUTPUT_FORMATS), "rows": _COUNT}, "url", "format", "rows"),
            "description": "Where its results go then, and of how many requests they are there.",
        },
    }
    request = {
        "allOf": [
            {"$ref": f"{prefix}InferRequest"},
            _object({"model_name": _STRING, "model_version": _STRING, "custom_id": _STRING}, "model_name"),
        ]
    }
    listed = {
        "requests": {"type": "array", "items": request, "minItems": 1, "maxItems": MAX_ITEMS},
        "metadata": _METADATA,
        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "In seconds."},
        "webhook": _object({"url": _STRING, "events": {"type": "array", "items": _EVENT, "minItems": 1}}, "url"),
    }
    link = {
        "expires_in": {**_COUNT, "minimum": 1, "maximum": MOST_SECONDS, "description": "In seconds."},
        "item": _COUNT,
    }
    source = {
        "model_name": _STRING,
        "model_version": _STRING,
        "input": _place(DataFormat),
        "output": _place(OUTPUT_FORMATS),
        "metadata": _METADATA,
        "timeout": listed["timeout"],
        "webhook": listed["webhook"],
    }
    page = {
        "object": _STRING,
        "jobs": {"type": "array", "items": {"$ref": f"{prefix}Job"}},
        "next": {**_STRING, "description": "What `after` is to be for the next page, where there may be one."},
    }
    return {
        "Job": _object(job, "id", "object", "state", "counts", "created_at", "expires_at"),
        "JobRequests": {
            "oneOf": [_object(listed, "requests"), _object(source, "model_name", "input", "output")],
        },
        "ResultLinkRequest": _object(link),
        "ResultLink": _object({"url": _STRING, "expires_at": _SECONDS}, "url", "expires_at"),
        "JobPage": _object(page, "jobs"),
        "JobRemoved": _object({"id": _STRING, "object": _STRING, "deleted": {"type": "boolean"}}, "id", "deleted"),
    }


def _format(formats: Iterable[str]) -> Schema:
    return {"type": "string", "enum": [*formats]}


def _place(formats: Iterable[str]) -> Schema:
    return _object({"url": _STRING, "format": _format(formats)}, "url")


def _object(members: dict[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": members, "required": list(required)}
