"""The one table from errors to status codes."""

from __future__ import annotations

import json

import pytest

from protocol.errors import KINDS, InvalidArgument, NotFound, ServerError
from protocol.http.errors import (
    BodyTimeout,
    BodyTooLarge,
    HeadersTooLarge,
    HeaderTimeout,
    MethodNotAllowed,
    TooManyConnections,
    TooManyStreams,
    UnsupportedCompression,
    error_reply,
    status_of,
)

EXPECTED = {
    "UNKNOWN": 400,
    "INTERNAL": 500,
    "NOT_FOUND": 404,
    "INVALID_ARG": 400,
    "UNAVAILABLE": 503,
    "OVERLOADED": 503,
    "UNSUPPORTED": 501,
    "ALREADY_EXISTS": 400,
    "CANCELLED": 400,
    "DEADLINE_EXCEEDED": 504,
    "PAYLOAD_TOO_LARGE": 413,
    "INSUFFICIENT_STORAGE": 507,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "RESTRICTED": 403,
}


def test_every_kind_has_its_status() -> None:
    """A kind that is added to the tree must be given a status here."""
    assert {kind: status_of(error("x")) for kind, error in KINDS.items()} == EXPECTED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MethodNotAllowed(("GET",)), 405),
        (BodyTimeout("x"), 408),
        (HeaderTimeout(2), 408),
        (BodyTooLarge("x", "max_body_size"), 413),
        (HeadersTooLarge(5), 431),
        (TooManyStreams(5), 429),
        (TooManyConnections(5), 503),
        (UnsupportedCompression(), 501),
    ],
)
def test_errors_of_this_edge(error: ServerError, status: int) -> None:
    assert status_of(error) == status


def test_a_subclass_takes_the_status_of_its_parent() -> None:
    class Lost(NotFound): ...

    assert status_of(Lost("x")) == 404


@pytest.mark.parametrize("text", ["plain", 'quotes " and größe', "lone \ud800 surrogate"])
def test_bodies_are_json_whatever_the_text(text: str) -> None:
    reply = error_reply(InvalidArgument(text))
    assert json.loads(reply.content) == {"error": text.replace("\ud800", "?")}
    assert dict(reply.headers) == {b"content-type": b"application/json"}


def test_headers_that_help() -> None:
    assert dict(error_reply(MethodNotAllowed(("GET", "HEAD"))).headers)[b"allow"] == b"GET, HEAD"
    assert dict(error_reply(UnsupportedCompression()).headers)[b"accept-encoding"] == b"gzip, deflate"
