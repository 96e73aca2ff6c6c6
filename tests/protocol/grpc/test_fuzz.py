"""Hypothesis against the edge: whatever comes, no exception, no INTERNAL, no hang, nothing left over.

`TRIOTON_FUZZ_EXAMPLES` makes it go on for longer.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest
import trio
import trio.testing
from hpack.hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from protocol.grpc.access import CATEGORIES
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.settings import ConnectionLimits, GrpcSettings, Keepalive
from tests.protocol.grpc.caller import serving
from tests.protocol.grpc.client import REQUEST_HEADERS, Client, framed
from tests.protocol.grpc.harness import INTERNAL, Calls
from tests.protocol.grpc.raw import Raw

pytestmark = pytest.mark.slow

UNKNOWN = 2
EXAMPLES = int(os.environ.get("TRIOTON_FUZZ_EXAMPLES", "200"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

LIMITS = ConnectionLimits(receive_timeout=1, send_timeout=1, keepalive=Keepalive(time=10))


# Frames.


def _block(*more: tuple[str, str]) -> bytes:
    return bytes(Encoder().encode([*REQUEST_HEADERS.items(), *more]))


def _frames() -> st.SearchStrategy[Frame | Raw]:
    stream, own = st.integers(0, 9), st.sampled_from([1, 3, 5, 7])
    blob = st.binary(max_size=40)
    path = st.sampled_from(["Echo", "Wait", "Chat", "Flood", "Deaf", "Defect", "Nothing"])
    block = st.one_of(
        st.builds(lambda name: _block((":path", f"/test.Test/{name}")), path),
        st.sampled_from([_block(), _block(("grpc-timeout", "1m")), _block(("grpc-encoding", "gzip"))]),
        st.sampled_from([bytes(Encoder().encode([("a", "b")])), b"\xbe\xbe", b""]),
    )
    ends = st.sampled_from([["END_HEADERS"], ["END_HEADERS", "END_STREAM"], []])
    message = st.sampled_from([framed(b"hello"), framed(b"x", flag=1), framed(b"")[:3], b"", b"\5\5\5\5\5"])
    return st.one_of(
        st.builds(lambda s, b, f: HeadersFrame(s, b, flags=f), own, block, ends),
        st.builds(lambda s, b, f: DataFrame(s, b, flags=f), own, message, st.sampled_from([[], ["END_STREAM"]])),
        st.builds(RstStreamFrame, own, st.integers(0, 20)),
        st.builds(WindowUpdateFrame, stream, st.integers(1, 2**31 - 1)),
        st.builds(lambda data: PingFrame(0, data), st.binary(min_size=8, max_size=8)),
        st.builds(lambda key, value: SettingsFrame(0, {key: value}), st.integers(0, 20), st.integers(0, 2**31)),
        st.builds(lambda s, b: ContinuationFrame(s, b, flags=["END_HEADERS"]), own, blob),
        st.builds(lambda s, on: PriorityFrame(s, depends_on=on), own, stream),
        st.builds(GoAwayFrame, st.just(0), stream),
        st.builds(Raw, st.integers(0, 255), blob),
    )


@given(st.lists(_frames(), max_size=40), st.integers(1, 60))
@fuzz
def test_any_frames_end_the_connection_at_worst(frames: list[Any], piece: int) -> None:
    """In any order, in pieces of any size: no exception, no call left over, and no memory."""
    recorder = Client(trio.testing.memory_stream_pair()[0])
    recorder.h2.initiate_connection()
    traffic = recorder.h2.data_to_send()
    for frame in frames:
        with contextlib.suppress(Exception):  # hyperframe's own checks
            traffic += frame.serialize()

    async def run() -> None:
        client_end, server_end = trio.testing.memory_stream_pair()
        connection = Connection(server_end, Shared(Calls().mapping(), LIMITS))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            with contextlib.suppress(trio.BrokenResourceError):
                for start in range(0, len(traffic), piece):
                    await client_end.send_all(traffic[start : start + piece])
                await client_end.send_eof()
        assert len(connection._calls) == 0
        assert connection._calls.memory.left == LIMITS.max_receive_memory

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


# Messages.


def _good_message(path: str) -> bytes:
    """A request of the path's type, with something in each of the fields that matter."""
    name = path.rpartition("/")[2]
    make = getattr(service_pb2, f"{'ModelInfer' if name == 'ModelStreamInfer' else name}Request", None)
    if make is None or name not in ("ModelInfer", "ModelStreamInfer"):
        return b"\x0a\x04echo\x12\x011" if make is not None else b""
    request = make(model_name="echo", model_version="1", id="7", raw_input_contents=[bytes(8)])
    given = request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    given.parameters["shared_memory_region"].string_param = "r"
    request.inputs.add(name="y", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"ab")
    request.outputs.add(name="x").parameters["classification"].int64_param = 3
    request.parameters["sequence_id"].int64_param = 5
    request.parameters["mine"].double_param = 0.5
    serialized: bytes = request.SerializeToString()
    return serialized


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    path = draw(st.sampled_from(sorted(CATEGORIES)))
    message = bytearray(_good_message(path))
    for position, value in draw(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=6)):
        if message:
            message[position % len(message)] = value
    payload = draw(st.one_of(st.just(bytes(message)), st.binary(max_size=100)))
    cut = draw(st.integers(0, len(payload)))
    body = draw(st.sampled_from([payload, payload[:cut], payload * 2]))
    encoding = draw(st.sampled_from(["", "gzip", "deflate", "identity", "other"]))
    timeout = draw(st.sampled_from(["", "1S", "1m", "0n", "99999999H", "-1S", "x"]))
    flag = draw(st.sampled_from([0, 0, 0, 1, 7]))
    return path, framed(body, flag), {"grpc-encoding": encoding, "grpc-timeout": timeout}


@given(st.lists(_calls(), min_size=1, max_size=4))
@fuzz
def test_any_messages_have_a_status_that_blames_the_client(calls: list[tuple[str, bytes, dict[str, str]]]) -> None:
    """On every call of the server, all on one connection, which stays."""

    async def run() -> None:
        async with serving(settings=GrpcSettings(limits=LIMITS)) as peers:
            for path, body, headers in calls:
                stream = await peers.client.open(path, headers)
                await peers.client.send(stream, body, end=True)
                if path.endswith("Watch"):
                    peers.client.h2.reset_stream(stream)
                    await peers.client.flush()
                    continue
                response = await peers.client.finish(stream)
                assert response.status not in (INTERNAL, UNKNOWN), (path, body, response.message)
            await peers.ask("ServerLive")
            await trio.testing.wait_all_tasks_blocked()
            assert len(peers.connection._calls) == 0
            assert peers.connection._calls.memory.left == LIMITS.max_receive_memory

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
