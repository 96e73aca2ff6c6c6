"""What a request's headers say, and what is refused by them alone."""

from __future__ import annotations

import pytest
from grpclib.const import Cardinality, Handler

from protocol.grpc.call.request_head import read_head

BASE = [(b":method", b"POST"), (b":path", b"/a/B"), (b"content-type", b"application/grpc")]


async def handle(_: object) -> None:
    raise NotImplementedError


HANDLERS = {"/a/B": Handler(handle, Cardinality.UNARY_UNARY, memoryview, bytes)}


def test_a_call() -> None:
    head = read_head([*BASE, (b"grpc-timeout", b"1500m"), (b"grpc-encoding", b"gzip")], HANDLERS, 1000)
    assert head.handler is HANDLERS["/a/B"]
    assert (head.method, head.timeout, head.encoding, head.refusal) == ("/a/B", 1.5, "gzip", None)


def test_nothing_is_said() -> None:
    head = read_head(BASE, HANDLERS, 1000)
    assert (head.timeout, head.encoding) == (None, "identity")


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({b":path": b"/a/C"}, b"12", b"unknown method"),
        ({b":path": b"\xff"}, b"12", b"unknown method"),
        ({b"grpc-encoding": b"br"}, b"12", b"not supported"),
        ({b"grpc-timeout": b"soon"}, b"3", b"grpc-timeout"),
        ({b"content-type": b"text/plain"}, b"3", b"expected POST"),
        ({b"large": b"x" * 1000}, b"8", b"larger than the server's limit of 1000 bytes"),
    ],
)
def test_a_call_that_is_refused(fields: dict[bytes, bytes], status: bytes, text: bytes) -> None:
    head = read_head([*{**dict(BASE), **fields}.items()], HANDLERS, 1000)
    assert head.handler is None
    assert head.refusal is not None
    said = dict(head.refusal)
    assert said[b"grpc-status"] == status
    assert text in said[b"grpc-message"]
    assert head.limit == ("max_header_size" if b"large" in fields else None)
