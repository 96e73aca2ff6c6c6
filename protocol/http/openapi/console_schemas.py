"""OpenAPI component schemas and operations of the live console, made from its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.access.categories import Category
from protocol.console.records import ErrorRow, History, LogRow, ModelDetails, RequestsInFlight, Snapshot
from protocol.http.openapi.operations import EVENT_STREAM, Operation

_RECORDS = (Snapshot, History, ModelDetails, RequestsInFlight, ErrorRow, LogRow)
_AFTER: Mapping[str, Any] = {
    "after": {"type": "integer", "minimum": 0, "description": "Only those with a higher `number`."}
}

CONSOLE_OPERATIONS: Mapping[str, Operation] = {
    "GET /v2/console": Operation("Needs no key; what it shows does.", media_type="text/html"),
    "GET /v2/console/files/{file_name}": Operation(media_type="text/plain", failures=(404,)),
    "GET /v2/console/access": Operation(
        "Needs no key. `refused` has a sentence for each category that is not allowed, and `model_control` one where "
        "models are not loaded by calls.",
        gives="ConsoleAccess",
    ),
    "GET /v2/console/events": Operation(
        "Events of two names: `snapshot` is a whole one, first and whenever the client has missed some; `changes` has "
        "only the models that differ from the one before.",
        gives="Snapshot",
        media_type=EVENT_STREAM,
        failures=(503,),
    ),
    "GET /v2/console/snapshot": Operation(
        "The newest one. Rates are those of the second before; the first snapshot in a while has none.",
        gives="Snapshot",
        failures=(503,),
    ),
    "GET /v2/console/history": Operation("What was recorded while anybody looked.", gives="History"),
    "GET /v2/console/models/{model_name}": Operation(gives="ModelDetails"),
    "GET /v2/console/models/{model_name}/history": Operation(
        "What was recorded while anybody looked.", gives="History"
    ),
    "GET /v2/console/requests": Operation("The oldest ones.", gives="RequestsInFlight"),
    "POST /v2/console/requests/{request_number}/cancel": Operation(
        "The content type has to be `application/json`.", gives="ConsoleCancel", failures=(501,)
    ),
    "GET /v2/console/errors": Operation(gives="ConsoleErrors", query=_AFTER),
    "GET /v2/console/log": Operation(gives="ConsoleLog", query=_AFTER),
}


def console_schemas(prefix: str) -> dict[str, Any]:
    """By name; a value that is null where nothing is known stays so."""
    _, made = msgspec.json.schema_components(_RECORDS, ref_template=prefix + "{name}")
    texts = {"type": "array", "items": {"type": "string"}}
    sentences = {"type": "object", "additionalProperties": {"type": "string"}}
    access = {
        "server": {"type": "object", "properties": {"name": {"type": "string"}, "version": {"type": "string"}}},
        "needs_key": {"type": "boolean"},
        "key": {"type": "string", "description": "The name of the caller's key."},
        "allowed": {**texts, "description": f"Of {', '.join(Category)}."},
        "refused": sentences,
        "model_control": {"type": "string"},
        "jobs": {"type": "boolean", "description": "Whether there are jobs."},
    }
    return {
        **{name: _without_defaults(schema) for name, schema in made.items()},
        "ConsoleAccess": {"type": "object", "properties": access, "required": list(access)},
        "ConsoleCancel": {
            "type": "object",
            "properties": {"cancelled": {"type": "boolean", "description": "False where it was over already."}},
            "required": ["cancelled"],
        },
        "ConsoleErrors": {"type": "array", "items": {"$ref": f"{prefix}ErrorRow"}},
        "ConsoleLog": {"type": "array", "items": {"$ref": f"{prefix}LogRow"}},
    }


def _without_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_defaults(item) for key, item in value.items() if key != "default"}
    return value
