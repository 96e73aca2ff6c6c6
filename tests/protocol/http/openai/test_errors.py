"""Errors in OpenAI's form: status, type, code, and what clients do about them."""

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
    ServerError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from protocol.http.errors import BodyTooLarge, TooManyStreams
from protocol.http.openai.errors import FieldError, ModelNotFound, SchemaError, error_event, openai_error_reply


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (InvalidArgument("x"), 400, "invalid_request_error", None, None),
        (FieldError("x", "n"), 400, "invalid_request_error", "n", None),
        (FieldError("x", "n", "bad"), 400, "invalid_request_error", "n", "bad"),
        (SchemaError("x", "n", []), 422, "invalid_request_error", "n", None),
        (Unsupported("x"), 400, "invalid_request_error", None, None),
        (Cancelled("x"), 400, "invalid_request_error", None, None),
        (NotFound("x"), 404, "invalid_request_error", None, "not_found"),
        (ModelNotFound("x"), 404, "invalid_request_error", "model", "model_not_found"),
        (BodyTooLarge("x", "y"), 413, "invalid_request_error", None, "content_too_large"),
        (Unauthenticated("x"), 401, "authentication_error", None, "invalid_api_key"),
        (Forbidden("x"), 403, "authentication_error", None, "invalid_auth"),
        (TooManyStreams(1), 429, "server_error", None, "unavailable"),
        (Unavailable("x"), 503, "server_error", None, "unavailable"),
        (Overloaded("x"), 503, "server_error", None, "unavailable"),
        (DeadlineExceeded("x"), 504, "server_error", None, "timeout"),
        (Internal("x"), 500, "server_error", None, "internal_error"),
    ],
)
def test_replies(error: ServerError, status: int, kind: str, param: str | None, code: str | None) -> None:
    message = error.message
    reply = openai_error_reply(error)
    assert reply.status == status
    described = json.loads(reply.content)
    assert described["error"] == {"message": message, "type": kind, "param": param, "code": code}
    assert described["detail"] == ([] if status == 422 else message)
    assert ((b"retry-after", b"1") in reply.headers) == (status in (429, 503))


def test_details_of_a_schema_error() -> None:
    assert json.loads(openai_error_reply(SchemaError("x", "n", [{"msg": "y"}])).content)["detail"] == [{"msg": "y"}]


def test_events() -> None:
    data = error_event(Internal("lone \ud800"), "mine")
    assert data.endswith(b"\n\n")
    found = json.loads(data.removeprefix(b"data: "))
    assert (found["error"]["message"], found["request_id"]) == ("lone ?", "mine")
