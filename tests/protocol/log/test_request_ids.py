"""Where a request's id comes from, and what is made."""

from __future__ import annotations

import pytest

from protocol.log.call_origin import CallOrigin, StreamedOrigin
from protocol.log.request_ids import NO_IDS, ClientIds, RequestIds, usual_id
from protocol.origin import RequestTags

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
PARENT = b"00-%b-%b-01" % (TRACE, SPAN)


def client(**headers: bytes) -> ClientIds:
    return ClientIds.of({name.replace("_", "-").encode(): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("headers", "own_id", "request_id"),
    [
        ({"x_request_id": b"mine"}, "", b"mine"),
        ({"x_request_id": b"mine", "traceparent": PARENT}, "own", b"mine"),
        ({"traceparent": PARENT}, "own", b"own"),
        ({"traceparent": PARENT}, "", TRACE),
        ({"traceparent": PARENT}, "not one word", TRACE),
        ({"x_request_id": b"two words"}, "own", b"own"),
        ({"x_request_id": b"x" * 129, "traceparent": PARENT}, "\u00e9", TRACE),
        ({"x_request_id": b"x" * 128}, "", b"x" * 128),
    ],
)
def test_the_clients_own(headers: dict[str, bytes], own_id: str, request_id: bytes) -> None:
    assert RequestIds().of(client(**headers), own_id) == request_id


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"00-%b-%b" % (TRACE, SPAN),
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-01" % (TRACE.upper(), SPAN),
        b"ff-%b-%b-01" % (TRACE, SPAN),
        b"00-%b-%b-01-more" % (TRACE, SPAN),
        b"00-%b-%b-01\n" % (TRACE, SPAN),
        b"\xff" * 55,
    ],
)
def test_no_trace(text: bytes) -> None:
    assert client(traceparent=text) in (NO_IDS, ClientIds())


def test_a_later_version_of_a_traceparent_may_say_more() -> None:
    assert client(traceparent=b"01-%b-%b-01-more" % (TRACE, SPAN)) == ClientIds(b"", TRACE, SPAN)


def test_ids_that_are_made_are_all_different() -> None:
    ids = RequestIds()
    made = [ids.make() for _ in range(1000)]
    assert len({*made, *(RequestIds().make() for _ in range(10))}) == 1010
    assert all(len(each) == 32 and bytes.fromhex(each.decode()) for each in made)


@pytest.mark.parametrize("text", ["a b", "a\n", "", "\ud800", "x" * 129, "\x7f"])
def test_unusual_ids(text: str) -> None:
    assert usual_id(text) == b""


def test_an_id_that_was_told_stays() -> None:
    origin = CallOrigin(RequestIds(), NO_IDS, lambda: "key")
    told = origin.name()
    assert origin.name("own") == told
    assert origin.tags("own") == RequestTags(told.decode(), "", "", "key")


def test_each_request_of_a_stream_has_its_own() -> None:
    call = CallOrigin(RequestIds(), client(x_request_id=b"call", traceparent=PARENT), lambda: "")
    origin = StreamedOrigin(call)
    assert [origin.tags(own_id).request_id for own_id in ("1", "", "not usual")] == ["1", "call", "call"]
    assert (origin.tags("1").trace_id, origin.tags("1").span_id) == (TRACE.decode(), SPAN.decode())
