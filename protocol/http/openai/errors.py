"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}, "detail": …}`, as a reply or as an event.

`detail` is what clients of Triton's frontend read. Clients try again what is answered 408, 409, 429 or 5xx: what will
fail again is 4xx here, also where the server's own routes say 501.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.errors import (
    DeadlineExceeded,
    Forbidden,
    Internal,
    InvalidField,
    NotFound,
    PayloadTooLarge,
    QuotaExceeded,
    Restricted,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unsupported,
    told,
)
from protocol.http.errors import error_reply, status_of
from protocol.http.reply import Reply


class FieldError(InvalidField):
    """A field of the body is wrong or cannot be honoured; `param` is its path, and `code` a word for programs."""

    def __init__(self, message: str, param: str, code: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code


class SchemaError(FieldError):
    """As `--openai-strict` answers a body that does not fit: 422, with `details` as Triton's frontend has them."""

    def __init__(self, message: str, param: str, details: list[dict[str, Any]]) -> None:
        super().__init__(message, param)
        self.details = details


class NotServed(Unsupported):
    """The server does not have this part of the interface; another one may: 501."""


class ModelNotFound(NotFound):
    """No text model of this name."""

    param = "model"
    code = "model_not_found"


# By the nearest class: the error's type and code. A class without an entry is a mistake of the client.
_WORDS: Mapping[type[ServerError], tuple[str, str | None]] = {
    ServerError: ("invalid_request_error", None),
    NotFound: ("invalid_request_error", "not_found"),
    PayloadTooLarge: ("invalid_request_error", "content_too_large"),
    Unauthenticated: ("authentication_error", "invalid_api_key"),
    Forbidden: ("authentication_error", "invalid_auth"),
    Unavailable: ("server_error", "unavailable"),
    QuotaExceeded: ("rate_limit_error", "rate_limit_exceeded"),
    DeadlineExceeded: ("server_error", "timeout"),
    Internal: ("server_error", "internal_error"),
}


def openai_error_reply(error: ServerError) -> Reply:
    """The error reply. The error loses its traceback (`protocol.errors.told`)."""
    reply = error_reply(error)
    described = error_object(error)
    detail = error.details if isinstance(error, SchemaError) else described["message"]
    return Reply(openai_status(error), reply.headers, msgspec.json.encode({"error": described, "detail": detail}))


def openai_status(error: ServerError) -> int:
    if isinstance(error, SchemaError):
        return 422
    if isinstance(error, Restricted):  # as Triton's frontend
        return 401
    is_400 = isinstance(error, Unsupported) and not isinstance(error, NotServed)
    return 400 if is_400 else status_of(error)


def error_event(error: ServerError, request_id: str) -> bytes:
    """The last event of a stream that fails. Official clients raise it as an APIError."""
    told(error)
    return b"data: %b\n\n" % msgspec.json.encode({"error": error_object(error), "request_id": request_id})


def error_object(error: ServerError) -> dict[str, Any]:
    kind, code = next(_WORDS[cls] for cls in type(error).__mro__ if cls in _WORDS)
    return {
        "message": error.message.encode("utf-8", "replace").decode(),
        "type": kind,
        "param": getattr(error, "param", None) or None,
        "code": getattr(error, "code", None) or code,
    }
