"""Bytes that no client would send, to whole connections: no answer blames the server, none hangs, nothing stays behind.

Time is virtual: whatever a connection waits for comes at once; so nothing here may need a thread, for which it does not
wait. `TRIOTON_FUZZ_EXAMPLES` makes it go on for longer.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import hyperframe.exceptions
import hyperframe.frame as frames
import pytest
import trio
import trio.testing
from hpack import Decoder, Encoder, HPACKError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.http.app import HttpApp
from protocol.http.connections import ConnectionServer
from protocol.http.settings import ConnectionLimits, HttpSettings
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("TRIOTON_FUZZ_EXAMPLES", "200"))
# Short, for the clock of a test looks at them several times a second.
LIMITS = ConnectionLimits(header_timeout=2, idle_timeout=5, send_timeout=5)
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# What is ours to answer although the request is at fault: not supported, not now.
NO_FAULT = {501, 503}
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")

PATHS = (
    "/v2",
    "/v2/health/live",
    "/v2/models/echo",
    "/v2/models/echo/infer",
    "/v2/models/many/generate",
    "/v2/models/many/generate_stream",
    "/v2/models/echo/versions/1/config",
    "/v2/models/stats",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/repository/index",
    "/v2/repository/models/m/load",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/status",
)
BODIES = (
    b"",
    b"{}",
    b'{"inputs":[]}',
    b'{"inputs":[{"name":"A","datatype":"FP32","shape":[2],"data":[1,NaN]}]}',
    b'{"inputs":[{"name":"A","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}}]}\1\0\0\0a',
    b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r"}}]}',
    b'{"IN":[1,2,3,4],"parameters":{"a":[' + b"[" * 200,
    b'{"key":"/k","byte_size":99999999999999999999}',
    b'{"trace_rate":"5","log_verbose_level":1}',
)


def talk(data: bytes, pieces: list[int]) -> tuple[bytes, FakeCore]:
    """All that comes back for these bytes, sent in pieces, until the connection is over."""
    core = FakeCore()

    async def run() -> bytes:
        services = make_services(core)
        server = ConnectionServer(HttpApp(services, HttpSettings()), LIMITS)
        ours, theirs = trio.socket.socketpair()
        client = trio.SocketStream(ours)
        answer = b""
        with trio.fail_after(10_000):
            async with client, trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, trio.SocketStream(theirs))
                nursery.start_soon(server.check_times)
                nursery.start_soon(send, client)
                with suppress(trio.BrokenResourceError):
                    while part := await client.receive_some():
                        answer += part
                nursery.cancel_scope.cancel()
        services.shared_memory.close()
        return answer

    async def send(client: trio.SocketStream) -> None:
        position = 0
        with suppress(trio.BrokenResourceError):
            for size in [*pieces, len(data)]:
                await client.send_all(data[position : position + size])
                position += size

    clock = trio.testing.MockClock(autojump_threshold=0.001)
    with logged() as records:
        answer = trio.run(run, clock=clock)
    assert not records, f"{records[0].getMessage()} after {data!r}"
    return answer, core


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the edge complains of: a client's bytes are no reason for a word."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[assignment, method-assign]  # all that a handler is here
    log = logging.getLogger("protocol.http")
    log.addHandler(handler)
    try:
        yield records
    finally:
        log.removeHandler(handler)


def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """With a few bytes changed, added, doubled or taken away."""
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 20))
        more = draw(
            st.one_of(st.binary(max_size=6), st.sampled_from([b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b" ", b"\0", b":"]))
        )
        kind = draw(st.sampled_from(["replace", "insert", "cut", "double"]))
        if kind == "replace":
            data = data[:at] + more + data[at + len(more) :]
        elif kind == "insert":
            data = data[:at] + more + data[at:]
        elif kind == "cut":
            data = data[:at] + data[at + size :]
        else:
            data = data[: at + size] + data[at:]
    return data


@st.composite
def http1(draw: st.DrawFn) -> bytes:
    """Some requests in a row, nearly right."""
    requests = b""
    for _ in range(draw(st.integers(1, 3))):
        body = mutated(draw, draw(st.sampled_from(BODIES)))
        method = draw(st.sampled_from(["GET", "POST", "POST", "POST", "HEAD", "PUT", "PRI"]))
        headers = ["Host: x"]
        framing = draw(st.sampled_from(["length", "length", "chunked", "both", "none"]))
        if framing in ("length", "both"):
            headers.append(f"Content-Length: {len(body)}")
        if framing in ("chunked", "both"):
            headers.append("Transfer-Encoding: chunked")
            size = draw(st.integers(1, 50))
            parts = [body[start : start + size] for start in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        extra = [
            "Inference-Header-Content-Length: 0",
            f"Inference-Header-Content-Length: {draw(st.integers(-1, 100))}",
            "Content-Encoding: br",
            "Accept-Encoding: gzip;q=x, deflate",
            "Expect: 100-continue",
            "Connection: close",
            "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
            "Authorization: Bearer x",
        ]
        headers += draw(st.lists(st.sampled_from(extra), max_size=3))
        head = f"{method} {draw(st.sampled_from(PATHS))} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
        requests += mutated(draw, head.encode()) + body
    return mutated(draw, requests)


@fuzz
@given(http1(), st.lists(st.integers(0, 100), max_size=5))
def test_http1(data: bytes, pieces: list[int]) -> None:
    answer, _ = talk(data, pieces)
    for status in map(int, STATUS.findall(answer)):
        assert status < 500 or status in NO_FAULT, answer


@fuzz
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    answer, core = talk(data, [])
    assert core.requests == []
    for status in map(int, STATUS.findall(answer)):
        assert status < 500 or status in NO_FAULT


def http2_statuses(data: bytes) -> list[int]:
    """The statuses of the responses in what a server has sent."""
    decoder = Decoder()
    decoder.max_allowed_table_size = 2**32  # the requests may have asked for it
    statuses: list[int] = []
    while len(data) >= 9:
        frame, length = frames.Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        if isinstance(frame, frames.HeadersFrame):
            statuses += [int(value) for name, value in decoder.decode(frame.data, raw=True) if name == b":status"]
        data = data[9 + length :]
    return statuses


SETTING = st.tuples(st.integers(1, 9), st.sampled_from([0, 1, 2, 100, 2**14, 2**31, 2**32 - 1]))
STREAMS = st.sampled_from([0, 1, 1, 1, 2, 3, 3, 5, 7, 2**31 - 1])
FLAGS = st.lists(st.sampled_from(["END_STREAM", "END_HEADERS", "ACK", "PADDED", "PRIORITY"]), max_size=3)


def header_block(draw: st.DrawFn, encoder: Encoder, *, strange: bool) -> bytes:
    headers = [(":method", draw(st.sampled_from(["GET", "POST", "POST", "HEAD"]))), (":scheme", "http")]
    headers += [(":path", draw(st.sampled_from(PATHS))), (":authority", "x")]
    if strange:
        more = [
            (":method", "CONNECT"),
            (":path", ""),
            ("content-length", "13"),
            ("te", "trailers"),
            ("connection", "close"),
            ("X", "y"),
            ("a", "\0"),
        ]
        headers += draw(st.lists(st.sampled_from(more), max_size=2))
    return bytes(encoder.encode(headers))


def strange_frame(draw: st.DrawFn, encoder: Encoder) -> bytes:
    """Any frame on any stream, with any flags."""
    stream = draw(STREAMS)
    flags = draw(FLAGS)
    body = draw(st.sampled_from(BODIES))
    made: Any = draw(
        st.sampled_from(
            [
                lambda: frames.HeadersFrame(stream, header_block(draw, encoder, strange=True), flags=flags),
                lambda: frames.DataFrame(stream, body, flags=flags),
                lambda: frames.ContinuationFrame(stream, header_block(draw, encoder, strange=True), flags=flags),
                lambda: frames.RstStreamFrame(stream, error_code=draw(st.integers(0, 20))),
                lambda: frames.WindowUpdateFrame(stream, window_increment=draw(st.integers(0, 2**31 - 1))),
                lambda: frames.PriorityFrame(stream, depends_on=draw(STREAMS), stream_weight=3),
                lambda: frames.PingFrame(0, opaque_data=b"12345678", flags=flags),
                lambda: frames.GoAwayFrame(0, last_stream_id=1, error_code=0),
                lambda: frames.SettingsFrame(0, settings=dict([draw(SETTING)])),
            ]
        )
    )
    try:
        data: bytes = made().serialize()
    except (hyperframe.exceptions.HyperframeError, HPACKError, ValueError):
        return b""
    return data


@st.composite
def http2(draw: st.DrawFn) -> bytes:
    """A preface, requests, and frames between them that are nearly right."""
    encoder = Encoder()
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames.SettingsFrame(0).serialize()
    for stream in range(1, draw(st.integers(1, 6)) * 2, 2):
        block = header_block(draw, encoder, strange=draw(st.integers(0, 3)) == 0)
        data += frames.HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize()
        match draw(st.integers(0, 4)):
            case 0:
                data += frames.RstStreamFrame(stream, error_code=8).serialize()
            case 1:
                data += strange_frame(draw, encoder)
            case 2:
                data += frames.DataFrame(stream, draw(st.sampled_from(BODIES))).serialize()
                data += frames.WindowUpdateFrame(stream, window_increment=draw(st.integers(1, 2**20))).serialize()
        data += frames.DataFrame(stream, draw(st.sampled_from(BODIES)), flags=["END_STREAM"]).serialize()
    return mutated(draw, data) if draw(st.integers(0, 3)) == 0 else data


@fuzz
@given(http2(), st.lists(st.integers(0, 100), max_size=5))
def test_http2(data: bytes, pieces: list[int]) -> None:
    answer, _ = talk(data, pieces)
    if answer.startswith(b"HTTP/1.1 "):  # it was not even a preface
        assert all(int(status) < 500 for status in STATUS.findall(answer))
        return
    for status in http2_statuses(answer):
        assert status < 500 or status in NO_FAULT


@pytest.mark.parametrize(
    ("path", "depth", "status"),
    [
        ("/v2/models/echo/infer", 100, b"200"),
        ("/v2/models/echo/infer", 101, b"400"),
        ("/v2/models/echo/infer", 5000, b"400"),
        ("/v2/models/echo/infer", 200_000, b"400"),
        ("/v2/models/many/generate", 5000, b"400"),
        ("/v2/logging", 100, b"200"),  # a member that nobody reads
        ("/v2/logging", 5000, b"400"),
        ("/v2/repository/models/m/load", 5000, b"400"),
        ("/v2/repository/models/m/load", 200_000, b"413"),  # more values than the body of a load may have
    ],
)
def test_json_nested_deeply(path: str, depth: int, status: bytes) -> None:
    """A refusal, whatever reads it."""
    body = b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1],"data":' + b"[" * depth + b"1" + b"]" * depth + b"}]}"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer, _ = talk(head.encode() + body, [])
    assert STATUS.findall(answer) == [status]


@pytest.mark.parametrize("count", [2**31, 2**62, 10**30])
def test_counts_that_promise_too_much(count: int) -> None:
    """No memory is taken on a promise."""
    for entry in (
        {"name": "A", "datatype": "FP32", "shape": [count], "data": [1]},
        {"name": "A", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": count}},
        {"name": "A", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": 0}},
    ):
        body = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        head = (
            f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            f"Inference-Header-Content-Length: {len(body)}\r\n\r\n"
        )
        answer, _ = talk(head.encode() + body, [])
        (status,) = STATUS.findall(answer)
        assert int(status) in (200, 400, 413)
