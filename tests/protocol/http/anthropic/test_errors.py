"""Errors of the Messages API: statuses, types and the form, as replies and as events."""

from __future__ import annotations

import json

import pytest

from protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    Internal,
    InvalidArgument,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from protocol.http.anthropic.errors import anthropic_error_event, anthropic_error_reply
from protocol.http.errors import MethodNotAllowed, TooManyStreams
from protocol.http.openai.errors import FieldError, SchemaError


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidArgument("x"), 400, "invalid_request_error"),
        (FieldError("x", "p"), 400, "invalid_request_error"),
        (SchemaError("x", "p", []), 400, "invalid_request_error"),
        (Unsupported("x"), 400, "invalid_request_error"),
        (Cancelled("x"), 400, "invalid_request_error"),
        (MethodNotAllowed(("POST",)), 405, "invalid_request_error"),
        (Unauthenticated("x"), 401, "authentication_error"),
        (Forbidden("x"), 403, "permission_error"),
        (NotFound("x"), 404, "not_found_error"),
        (PayloadTooLarge("x"), 413, "request_too_large"),
        (TooManyStreams(1), 429, "rate_limit_error"),
        (Internal("x"), 500, "api_error"),
        (DeadlineExceeded("x"), 504, "timeout_error"),
        (Unavailable("x"), 529, "overloaded_error"),
        (Overloaded("x"), 529, "overloaded_error"),
    ],
)
def test_replies(error: ServerError, status: int, kind: str) -> None:
    reply = anthropic_error_reply(error)
    body, headers = json.loads(reply.content), dict(reply.headers)
    assert (reply.status, body["type"]) == (status, "error")
    assert body["error"] == {"type": kind, "message": error.message}
    assert (b"retry-after" in headers) == (status in (429, 529))
    assert (b"www-authenticate" in headers) == (status == 401)


def test_events() -> None:
    assert anthropic_error_event(Internal('a"\ud800'), "mine") == (
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"a\\"?"},"request_id":"mine"}\n\n'
    )
