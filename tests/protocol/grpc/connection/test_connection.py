"""The HTTP/2 driver: calls, and what is refused."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from grpclib.const import Cardinality, Handler
from h2.errors import ErrorCodes

from protocol.grpc.call.stream import Stream
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.settings import ConnectionLimits
from tests.protocol.grpc.client import Client, framed
from tests.protocol.grpc.harness import (
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    connected,
)


async def test_a_unary_call_is_answered_in_one_write(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await peers.client.read()  # the server's settings
        await trio.testing.wait_all_tasks_blocked()
        peers.server_writes.clear()
        response = await peers.client.call("/test.Test/Echo", b"hello")
        assert response.messages == [b"hello"]
        assert response.status == 0
        assert response.headers[":status"] == "200"
        assert response.headers["content-type"] == "application/grpc"
        assert len(peers.server_writes) == 1


async def test_a_burst_of_calls_is_answered_in_one_write(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await peers.client.read()
        streams = [await peers.client.start_call("/test.Test/Wait", b"%d" % number) for number in range(20)]
        await trio.testing.wait_all_tasks_blocked()
        peers.server_writes.clear()
        peers.calls.gate.set()
        responses = [await peers.client.finish(stream) for stream in streams]
        assert [response.messages for response in responses] == [[b"%d" % number] for number in range(20)]
        assert len(peers.server_writes) == 1


async def test_a_message_that_comes_byte_by_byte(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Echo")
        for byte in framed(b"hello"):
            await peers.client.send(stream, bytes([byte]))
        await peers.client.send(stream, b"", end=True)
        response = await peers.client.finish(stream)
        assert (response.messages, response.status, response.reset) == ([b"hello"], 0, None)


@pytest.mark.parametrize("piece", [4_000, 40_001, 131_072])
async def test_a_large_message_that_comes_in_pieces(piece: int, autojump_clock: trio.testing.MockClock) -> None:
    """Its handler sleeps until it is whole."""
    message = bytes(range(256)) * 3000
    waits = 0
    wait = Stream._wait

    async def counted(stream: Stream) -> None:
        nonlocal waits
        waits += 1
        await wait(stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "_wait", counted)
        async with connected() as peers:
            stream = await peers.client.open("/test.Test/Echo")
            await trio.testing.wait_all_tasks_blocked()
            data = framed(message)
            for start in range(0, len(data), piece):
                await peers.client.send(stream, data[start : start + piece], end=start + piece >= len(data))
                await trio.testing.wait_all_tasks_blocked()
            assert (await peers.client.finish(stream)).messages == [message]
    assert waits == 2  # for its beginning, and for its end


async def test_a_stream_answers_message_by_message(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Chat")
        for number in range(3):
            await peers.client.send(stream, framed(b"%d" % number))
            while len(peers.client.responses[stream].messages) <= number:
                await peers.client.read()
        await peers.client.send(stream, framed(b"a") + framed(b"b"), end=True)
        response = await peers.client.finish(stream)
        assert response.messages == [b"0", b"1", b"2", b"a", b"b"]
        assert response.status == 0


async def test_a_stream_without_messages_ends_well(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        response = await peers.client.call("/test.Test/Chat")
        assert (response.messages, response.status) == ([], 0)


# Refusals.

REFUSED: list[tuple[str, dict[str, str], str, int, str]] = [
    ("/test.Test/Nothing", {}, "200", UNIMPLEMENTED, "unknown method '/test.Test/Nothing'"),
    ("/", {}, "200", UNIMPLEMENTED, "unknown method '/'"),
    ("/test.Test/Echo", {"content-type": "application/json"}, "415", INVALID_ARGUMENT, "got POST with 'application/js"),
    ("/test.Test/Echo", {"content-type": "application/grpc+json"}, "415", INVALID_ARGUMENT, "application/grpc+json"),
    ("/test.Test/Echo", {"content-type": ""}, "415", INVALID_ARGUMENT, "got POST with ''"),
    ("/test.Test/Echo", {":method": "GET"}, "405", INVALID_ARGUMENT, "expected POST"),
    ("/test.Test/Echo", {"grpc-timeout": "soon"}, "200", INVALID_ARGUMENT, "grpc-timeout must be at most 8 digits"),
    ("/test.Test/Echo", {"grpc-encoding": "snappy"}, "200", UNIMPLEMENTED, "grpc-encoding 'snappy' is not supported"),
]


@pytest.mark.parametrize(("path", "headers", "http_status", "status", "message"), REFUSED)
async def test_a_call_that_cannot_be_served_is_refused(
    path: str,
    headers: dict[str, str],
    http_status: str,
    status: int,
    message: str,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With the right status and a sentence; the connection serves on, and the client need not send its request."""
    async with connected() as peers:
        response = await peers.client.call(path, b"hello", headers=headers)
        assert (response.headers[":status"], response.status) == (http_status, status)
        assert message in response.message
        early = await peers.client.finish(await peers.client.open(path, headers))
        assert early.status == status
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto", "application/grpc; v=1"])
async def test_content_types_that_are_taken(content_type: str, autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        response = await peers.client.call("/test.Test/Echo", b"x", headers={"content-type": content_type})
        assert response.status == 0


BROKEN: list[tuple[str, bytes, int, str]] = [
    ("/test.Test/Echo", b"", INVALID_ARGUMENT, "takes one request message, got none"),
    ("/test.Test/Echo", framed(b"a") + framed(b"b"), INVALID_ARGUMENT, "takes one request message, got more"),
    ("/test.Test/Echo", framed(b"abc")[:-1], INVALID_ARGUMENT, "the request ends within a message"),
    ("/test.Test/Echo", b"\0\0\0", INVALID_ARGUMENT, "the request ends within a message"),
    ("/test.Test/Echo", framed(b"a", flag=7), INVALID_ARGUMENT, "compressed flag must be 0 or 1, got 7"),
    ("/test.Test/Echo", framed(b"a", flag=1), INVALID_ARGUMENT, "flagged as compressed, but grpc-encoding is"),
    ("/test.Test/Chat", framed(b"abc")[:-1], INVALID_ARGUMENT, "the request ends within a message"),
    (
        "/test.Test/Echo",
        framed(bytes(101)),
        RESOURCE_EXHAUSTED,
        "message of 101 bytes is larger than the server's limit",
    ),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), BROKEN)
async def test_a_broken_request_is_the_clients_mistake(
    path: str, body: bytes, status: int, message: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(ConnectionLimits(max_message_size=100)) as peers:
        stream = await peers.client.open(path)
        await peers.client.send(stream, body, end=True)
        response = await peers.client.finish(stream)
        assert response.status == status
        assert message in response.message
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


async def test_a_message_over_the_limit_is_refused_before_it_has_come(autojump_clock: trio.testing.MockClock) -> None:
    """The prefix is enough; the stream is reset, so that the client stops sending."""
    async with connected(ConnectionLimits(max_message_size=1000)) as peers:
        stream = await peers.client.open("/test.Test/Echo")
        await peers.client.send(stream, b"\0" + (2**32 - 1).to_bytes(4, "big"))
        response = await peers.client.finish(stream)
        assert response.status == RESOURCE_EXHAUSTED
        while response.reset is None:
            await peers.client.read()
        assert response.reset == ErrorCodes.NO_ERROR


async def test_a_call_that_ends_before_its_client_does_is_closed_both_ways(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Status first, then RST_STREAM without an error, and what still comes is dropped."""
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Early")
        response = await peers.client.finish(stream)
        assert (response.status, response.message) == (NOT_FOUND, "nothing here")
        while response.reset is None:
            await peers.client.read()
        assert response.reset == ErrorCodes.NO_ERROR
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


async def test_a_defect_is_internal_and_logged(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as peers:
        response = await peers.client.call("/test.Test/Defect", b"x")
        assert response.status == INTERNAL
        assert "defect of the test" not in response.message
        assert "a defect of the test" in caplog.text
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


# Compression.

COMPRESSED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("encoding", COMPRESSED)
@pytest.mark.parametrize("size", [0, 5, 200_000])
async def test_compressed_requests_are_taken(encoding: str, size: int) -> None:
    """Small ones at once, large ones in a thread."""
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Echo", {"grpc-encoding": encoding})
        await peers.client.send(stream, framed(COMPRESSED[encoding](message), flag=1), end=True)
        response = await peers.client.finish(stream)
        assert response.messages == [message]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", COMPRESSED)
async def test_a_bomb_is_not_inflated(encoding: str) -> None:
    async with connected(ConnectionLimits(max_message_size=100_000)) as peers:
        stream = await peers.client.open("/test.Test/Echo", {"grpc-encoding": encoding})
        await peers.client.send(stream, framed(COMPRESSED[encoding](bytes(50_000_000)), flag=1), end=True)
        response = await peers.client.finish(stream)
        assert response.status == RESOURCE_EXHAUSTED
        assert "limit of 100000 bytes" in response.message


async def test_headers_as_a_handler_sees_them() -> None:
    """By name, the first of several; and those that may be forwarded, as they were sent."""
    seen: list[Any] = []

    async def look(stream: Stream) -> None:
        await stream.recv_message()
        seen.append((stream.header("key"), stream.header("grpc-timeout"), stream.header("other")))
        seen.append(stream.forwardable_headers())
        await stream.send_message(b"")

    client_end, server_end = trio.testing.memory_stream_pair()
    handlers = {"/test.Test/Look": Handler(look, Cardinality.UNARY_UNARY, memoryview, bytes)}
    client = Client(client_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(server_end, Shared(handlers)).run)
        await client.start()
        headers = {"key": "value", "data-bin": "AAE", "grpc-timeout": "9S", "user-agent": "test"}
        assert (await client.call("/test.Test/Look", b"", headers=headers)).status == 0
        assert seen[0] == ("value", "9S", None)
        assert seen[1] == [("key", "value"), ("data-bin", "AAE"), ("user-agent", "test")]
        await client_end.aclose()
