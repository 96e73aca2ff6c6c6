"""Errors in Anthropic's form: `{"type": "error", "error": {"type", "message"}}`, as a reply or an event, with
the `request_id` beside it, which a reply gets as all errors do.

Clients try again what is answered 408, 409, 429 or 5xx: what will fail again is 4xx here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.errors import (
    DeadlineExceeded,
    Forbidden,
    Internal,
    NotFound,
    PayloadTooLarge,
    QuotaExceeded,
    ServerError,
    Unauthenticated,
    Unavailable,
    told,
)
from protocol.http.anthropic.codec.blocks import event
from protocol.http.errors import TooManyStreams
from protocol.http.openai.errors import SchemaError, openai_error_reply, openai_status
from protocol.http.reply import Reply

REQUEST_ID = b"request-id"
_OVERLOADED = 529

# By the nearest class. One without an entry is a mistake of the client.
_TYPES: Mapping[type[ServerError], str] = {
    ServerError: "invalid_request_error",
    NotFound: "not_found_error",
    PayloadTooLarge: "request_too_large",
    Unauthenticated: "authentication_error",
    Forbidden: "permission_error",
    TooManyStreams: "rate_limit_error",
    QuotaExceeded: "rate_limit_error",
    Unavailable: "overloaded_error",
    DeadlineExceeded: "timeout_error",
    Internal: "api_error",
}


def anthropic_error_reply(error: ServerError) -> Reply:
    """The error reply. The error loses its traceback (`protocol.errors.told`)."""
    members = {"type": "error", "error": _object(error)}
    return Reply(anthropic_status(error), openai_error_reply(error).headers, msgspec.json.encode(members))


def anthropic_status(error: ServerError) -> int:
    if isinstance(error, SchemaError):
        return 400
    status = openai_status(error)
    return _OVERLOADED if status == 503 else status


def anthropic_error_event(error: ServerError, request_id: str) -> bytes:
    """The last event of a stream that fails. The official clients raise it."""
    told(error)
    return event("error", {"type": "error", "error": _object(error), "request_id": request_id})


def _object(error: ServerError) -> dict[str, Any]:
    kind = next(_TYPES[cls] for cls in type(error).__mro__ if cls in _TYPES)
    return {"type": kind, "message": error.message.encode("utf-8", "replace").decode()}
