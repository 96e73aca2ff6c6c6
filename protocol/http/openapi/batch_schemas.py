"""OpenAPI component schemas of OpenAI's files and batches."""

from __future__ import annotations

from typing import Any, TypeAlias

from protocol.http.openai.batches.codec import ENDPOINTS, MAX_EXPIRY, MIN_EXPIRY
from protocol.jobs.batches.batch import BATCH_EVENTS, BatchState
from protocol.jobs.batches.files import INPUT, OUTPUT

Schema: TypeAlias = dict[str, Any]


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SECONDS: Schema = {"type": "integer", "description": "In seconds since the epoch."}
_EXPIRES: Schema = {
    "type": "object",
    "properties": {
        "anchor": {"enum": ["created_at"]},
        "seconds": {"type": "integer", "minimum": MIN_EXPIRY, "maximum": MAX_EXPIRY},
    },
    "required": ["anchor", "seconds"],
}
_METADATA: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": 512},
    "maxProperties": 16,
}
_WEBHOOK: Schema = {
    "type": "object",
    "properties": {
        "url": {"type": "string"},
        "events": _or_null({"type": "array", "items": {"enum": list(BATCH_EVENTS)}, "minItems": 1}),
    },
    "required": ["url"],
}


def batch_schemas(prefix: str) -> dict[str, Schema]:
    """By their names; `prefix` is that of references."""
    file: Schema = {
        "id": _STRING,
        "object": {"enum": ["file"]},
        "bytes": _COUNT,
        "created_at": _SECONDS,
        "expires_at": _SECONDS,
        "filename": _STRING,
        "purpose": {"enum": [INPUT, OUTPUT]},
        "status": {"enum": ["processed"]},
        "status_details": {"type": "null"},
    }
    upload: Schema = {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": [INPUT]},
        "expires_after": _EXPIRES,
    }
    asked: Schema = {
        "input_file_id": _STRING,
        "endpoint": {"enum": list(ENDPOINTS)},
        "completion_window": {"enum": ["24h"]},
        "metadata": _or_null(_METADATA),
        "output_expires_after": _or_null(_EXPIRES),
        "webhook": _or_null(_WEBHOOK),
    }
    return {
        "File": _object(file, *file),
        "FileUpload": _object(upload, "file", "purpose"),
        "FilePage": _page({"$ref": f"{prefix}File"}),
        "FileRemoved": _object({"id": _STRING, "object": _STRING, "deleted": _BOOLEAN}, "id", "object", "deleted"),
        "BatchRequest": _object(asked, "input_file_id", "endpoint", "completion_window"),
        "Batch": _batch(),
        "BatchPage": _page({"$ref": f"{prefix}Batch"}),
    }


def _batch() -> Schema:
    error: Schema = {"code": _STRING, "line": _or_null(_COUNT), "message": _STRING, "param": _or_null(_STRING)}
    errors: Schema = {"object": {"enum": ["list"]}, "data": {"type": "array", "items": _object(error, *error)}}
    counts = ("total", "completed", "failed")
    times = [f"{state}_at" for state in BatchState if state is not BatchState.VALIDATING]
    members: Schema = {
        "id": _STRING,
        "object": {"enum": ["batch"]},
        "endpoint": {"enum": list(ENDPOINTS)},
        "model": _or_null(_STRING),
        "errors": _or_null(_object(errors, *errors)),
        "input_file_id": _STRING,
        "completion_window": {"enum": ["24h"]},
        "status": {"enum": list(BatchState)},
        "output_file_id": _or_null(_STRING),
        "error_file_id": _or_null(_STRING),
        "created_at": _SECONDS,
        "expires_at": _SECONDS,
        **dict.fromkeys(times, _or_null(_SECONDS)),
        "request_counts": _object(dict.fromkeys(counts, _COUNT), *counts),
        "usage": _or_null({"type": "object"}),
        "metadata": _or_null(_METADATA),
    }
    return _object(members, *members)


def _page(item: Schema) -> Schema:
    members: Schema = {
        "object": {"enum": ["list"]},
        "data": {"type": "array", "items": item},
        "first_id": _or_null(_STRING),
        "last_id": _or_null(_STRING),
        "has_more": _BOOLEAN,
    }
    return _object(members, *members)


def _object(members: dict[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": members, "required": list(required)}
