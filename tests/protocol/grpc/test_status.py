"""Errors to statuses, and status texts on the wire."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import decode_grpc_message
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import KINDS, PayloadTooLarge, Unsupported
from protocol.grpc.status import MAX_STATUS_MESSAGE, UNEXPECTED, encode_status_message, status_of

NAMES = {
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNSUPPORTED": "UNIMPLEMENTED",
    "PAYLOAD_TOO_LARGE": "RESOURCE_EXHAUSTED",
    "INSUFFICIENT_STORAGE": "RESOURCE_EXHAUSTED",
    "FORBIDDEN": "PERMISSION_DENIED",
    "RESTRICTED": "UNAVAILABLE",
    "OVERLOADED": "RESOURCE_EXHAUSTED",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_status(kind: str) -> None:
    """The same name, but for a few; the text is the error's own."""
    status, message = status_of(KINDS[kind]("what went wrong"), "a call")
    assert (status.name, message) == (NAMES.get(kind, kind), "what went wrong")


def test_grpclibs_own_errors_keep_their_status() -> None:
    assert status_of(GRPCError(Status.ABORTED, "no"), "a call") == (Status.ABORTED, "no")
    assert status_of(GRPCError(Status.UNIMPLEMENTED), "a call") == (Status.UNIMPLEMENTED, "UNIMPLEMENTED")


def test_a_defect_is_internal_and_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        raise ZeroDivisionError("secret")
    assert status_of(caught.value, "a call") == (Status.INTERNAL, UNEXPECTED)
    assert "a call failed unexpectedly" in caplog.text
    assert "ZeroDivisionError: secret" in caplog.text


def test_errors_of_clients_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    status_of(Unsupported("x"), "a call")
    status_of(PayloadTooLarge("x"), "a call")
    assert not caplog.records


@given(st.text(max_size=200))
def test_a_short_text_arrives_whole(message: str) -> None:
    encoded = encode_status_message(message)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert decode_grpc_message(encoded) == message.encode(errors="replace").decode()


@pytest.mark.parametrize("character", ["a", "\n", "é", "漢", "\U0001f600", "\ud800"])
def test_a_long_text_is_shortened_at_a_character(character: str) -> None:
    encoded = encode_status_message(character * 100_000)
    assert MAX_STATUS_MESSAGE // 2 < len(encoded) <= MAX_STATUS_MESSAGE
    text = decode_grpc_message(encoded)
    assert text.endswith(" ...")
    assert set(text[:-4]) == {character.encode(errors="replace").decode()}
