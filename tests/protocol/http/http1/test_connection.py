"""HTTP/1.1 byte by byte, over plain sockets: framing that is exact, and refusals of all that is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
import trio
import trio.testing

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.http.date import DateHeader
from protocol.http.exchange import Exchange
from protocol.http.http1.chunks import MAX_CHUNKS
from protocol.http.http1.connection import Http1
from protocol.http.reply import Reply
from protocol.http.server import HttpSettings
from protocol.http.settings import ConnectionLimits
from protocol.reactor.transport import Wire
from tests.protocol.http.conftest import Serve, Served
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services

LOOPBACK = HttpSettings(host="127.0.0.1", port=0)
INFER = "/v2/models/echo/infer"
EMPTY = b'{"inputs":[]}'


def head(path: str, *headers: str, method: str = "POST", version: str = "1.1") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/{version}", "Host: x", *headers, "", "")).encode("latin-1")


def sized(path: str, body: bytes, *headers: str) -> bytes:
    return head(path, f"Content-Length: {len(body)}", *headers) + body


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


class Client:
    """A connection whose responses are read one at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """One response, informational ones included."""
        while b"\r\n\r\n" not in self._data:
            await self._more()
        text, self._data = self._data.split(b"\r\n\r\n", 1)
        first, *lines = text.decode("latin-1").split("\r\n")
        status = int(first.split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, await self._chunks()
        body = await self._take(int(headers.get("content-length", 0)))
        return status, headers, body

    async def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._data:
                await self._more()
            size, self._data = self._data.split(b"\r\n", 1)
            chunk = await self._take(int(size, 16) + 2)
            if chunk == b"\r\n":
                return body
            body += chunk[:-2]

    async def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            await self._more()
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    async def _more(self) -> None:
        with trio.fail_after(10):
            data = bytes(await self.stream.receive_some())
        assert data, "the server closed the connection"
        self._data += data

    async def is_at_end(self) -> bool:
        with trio.fail_after(10):
            return self._data + bytes(await self.stream.receive_some()) == b""


async def connect(server: Served) -> Client:
    return Client(await server.connect())


async def is_alive(server: Served) -> bool:
    client = await connect(server)
    await client.send(head("/v2/health/live", method="GET"))
    return (await client.response())[0] == 200


async def test_a_body_in_every_framing(serve: Serve) -> None:
    """With its length, in chunks, with extensions and trailers, byte by byte; over one connection."""
    client = await connect(await serve())
    trailers = chunked(EMPTY)[:-2] + b"X-Checksum: 1\r\n\r\n"
    extended = b'd;name="a;b"\r\n' + EMPTY + b"\r\n0;last\r\n\r\n"
    for sent in (
        sized(INFER, EMPTY),
        head(INFER, "Transfer-Encoding: chunked") + chunked(EMPTY),
        head(INFER, "transfer-encoding: Chunked") + chunked(*(bytes([byte]) for byte in EMPTY)),
        head(INFER, "Transfer-Encoding: chunked", "Trailer: X-Checksum") + trailers,
        head(INFER, "Transfer-Encoding: chunked") + extended,
    ):
        await client.send(sent)
        assert (await client.response())[0] == 200
    for byte in sized(INFER, EMPTY):
        await client.send(bytes([byte]))
    assert (await client.response())[0] == 200


async def test_many_requests_in_one_write_are_answered_in_order(serve: Serve) -> None:
    """Whatever they are, and however the next one's head is cut."""
    client = await connect(await serve())
    ids = [str(number) for number in range(20)]
    sent = b"".join(sized(INFER, json.dumps({"id": i, "inputs": []}).encode()) for i in ids)
    sent += head("/nowhere", method="GET") + sized(INFER, b"{") + head("/v2/health/live", method="GET")
    await client.send(sent[:-10])
    assert [json.loads((await client.response())[2])["id"] for _ in ids] == ids
    assert [(await client.response())[0] for _ in range(2)] == [404, 400]
    await client.send(sent[-10:])
    assert (await client.response())[0] == 200


async def test_a_stream_of_events_in_chunks(serve: Serve) -> None:
    """Each event leaves when it is there; the connection goes on after the end."""
    client = await connect(await serve(FakeCore(answers=3)))
    for _ in range(2):
        await client.send(sized("/v2/models/many/generate_stream", b'{"IN":[1,2,3,4]}'))
        status, headers, body = await client.response()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        events = [json.loads(part.removeprefix(b"data: ")) for part in body.split(b"\n\n")[:-1]]
        assert [event["index"] for event in events] == [0, 1, 2]


async def test_a_stream_of_events_for_http_1_0(serve: Serve) -> None:
    """Which knows no chunks: the end of the connection is the end of the body."""
    client = await connect(await serve(FakeCore(answers=2)))
    body = b'{"IN":[1,2,3,4]}'
    await client.send(head("/v2/models/many/generate_stream", f"Content-Length: {len(body)}", version="1.0") + body)
    answer = b""
    with trio.fail_after(10):
        while part := await client.stream.receive_some():
            answer += part
    assert b"transfer-encoding" not in answer
    assert answer.count(b"data: ") == 2


@pytest.mark.parametrize(
    ("version", "headers", "stays"),
    [
        ("1.1", [], True),
        ("1.1", ["Connection: close"], False),
        ("1.1", ["Connection: foo, Close"], False),
        ("1.0", [], False),
        ("1.0", ["Connection: keep-alive"], True),
    ],
)
async def test_keep_alive(serve: Serve, version: str, headers: list[str], stays: bool) -> None:
    client = await connect(await serve())
    await client.send(head("/v2", *headers, method="GET", version=version))
    status, answer, _ = await client.response()
    assert status == 200
    assert answer.get("connection") == ("close" if not stays else "keep-alive" if version == "1.0" else None)
    if stays:
        await client.send(head("/v2", method="GET"))
        assert (await client.response())[0] == 200
    else:
        assert await client.is_at_end()


async def test_a_client_that_asks_first_is_told_to_go_on(serve: Serve) -> None:
    """Once, when its body is wanted."""
    client = await connect(await serve())
    await client.send(head(INFER, f"Content-Length: {len(EMPTY)}", "Expect: 100-continue"))
    assert (await client.response())[0] == 100
    await client.send(EMPTY)
    assert (await client.response())[0] == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (INFER, ["Content-Length: 100000000"], 413),
        (INFER, ["Content-Length: 50", "Content-Encoding: br"], 501),
        ("/nowhere", ["Content-Length: 50"], 404),
        ("/v2", ["Content-Length: 50"], 405),
        ("/v2/logging", ["Content-Length: 50"], 403),
    ],
)
async def test_a_client_that_asks_first_is_refused_without_its_body(
    serve: Serve, path: str, headers: list[str], status: int
) -> None:
    """The refusal comes in place of `100 Continue`."""
    access = AccessControl(RestrictedApis.parse(["logging:k=v"], HTTP_API))
    server = await serve(services=make_services(access=access), settings=replace(LOOPBACK, linger=0.05))
    client = await connect(server)
    await client.send(head(path, *headers, "Expect: 100-continue"))
    found, answer, _ = await client.response()
    assert (found, answer["connection"]) == (status, "close")
    assert await client.is_at_end()


async def test_a_body_that_comes_unasked_is_taken(serve: Serve) -> None:
    """A client need not wait for `100 Continue`."""
    client = await connect(await serve())
    await client.send(sized(INFER, EMPTY, "Expect: 100-continue") + sized(INFER, EMPTY))
    assert [(await client.response())[0] for _ in range(2)] == [200, 200]


SMUGGLED = head("/v2/models/smuggled", method="GET")


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        # Lengths that two servers may read differently.
        (
            head(INFER, "Content-Length: 6", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED,
            400,
            "malformed HTTP request: Transfer-Encoding can't be present with Content-Length",
        ),
        (
            head(INFER, "Transfer-Encoding: chunked", "Content-Length: 0") + chunked(EMPTY),
            400,
            "Content-Length can't be",
        ),
        (
            head(INFER, "Transfer-Encoding: chunked", version="1.0") + chunked(EMPTY),
            400,
            "malformed HTTP request: 'Transfer-Encoding' in HTTP/1.0, so that its length is not certain",
        ),
        (head(INFER, "Content-Length: 5", "Content-Length: 6") + EMPTY, 400, "Duplicate Content-Length"),
        (head(INFER, "Content-Length: 13", "Content-Length: 13") + EMPTY, 400, "Duplicate Content-Length"),
        (head(INFER, "Content-Length: 5, 6") + EMPTY, 400, "character in Content-Length"),
        (head(INFER, "Content-Length: +13") + EMPTY, 400, "character in Content-Length"),
        (head(INFER, "Content-Length: 0x0d") + EMPTY, 400, "character in Content-Length"),
        (head(INFER, "Content-Length: -1") + EMPTY, 400, "character in Content-Length"),
        (head(INFER, "Content-Length: " + "9" * 5000) + EMPTY, 400, "Content-Length overflow"),
        (head(INFER, "Content-Length:") + EMPTY, 400, "Empty Content-Length"),
        (head(INFER, "Content-Length : 13") + EMPTY, 400, "Invalid header field char"),
        # Transfer codings that are not known, or hidden.
        (head(INFER, "Transfer-Encoding: gzip, chunked") + chunked(EMPTY), 501, "Transfer-Encoding"),
        (head(INFER, "Transfer-Encoding: identity") + EMPTY, 501, "Transfer-Encoding"),
        (head(INFER, "Transfer-Encoding: xchunked") + chunked(EMPTY), 501, "Transfer-Encoding"),
        (
            head(INFER, "Transfer-Encoding: chunked", "Transfer-Encoding: gzip") + chunked(EMPTY),
            501,
            "Transfer-Encoding",
        ),
        (head(INFER, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + chunked(EMPTY), 501, "Transfer-Enc"),
        (head(INFER, "Transfer-Encoding: \x0bchunked") + chunked(EMPTY), 400, "Invalid header value char"),
        (head(INFER, "Transfer-Encoding : chunked") + chunked(EMPTY), 400, "Invalid header field char"),
        # Chunks that are none.
        (head(INFER, "Transfer-Encoding: chunked") + b"zz\r\n", 400, "malformed HTTP request: "),
        (head(INFER, "Transfer-Encoding: chunked") + b"-1\r\n", 400, "malformed HTTP request: "),
        (head(INFER, "Transfer-Encoding: chunked") + b"0x5\r\n", 400, "malformed HTTP request: "),
        (head(INFER, "Transfer-Encoding: chunked") + b"f" * 30 + b"\r\n", 400, "malformed HTTP request: "),
        (head(INFER, "Transfer-Encoding: chunked") + b"2\r\nabXX0\r\n\r\n", 400, "malformed HTTP request: "),
        (
            head(INFER, "Transfer-Encoding: chunked") + b"5;" + b"x" * 200_000,
            431,
            "the request's line and headers exceed",
        ),
        (head(INFER, "Transfer-Encoding: chunked") + chunked(b"{")[:-2] + b"bad trailer\r\n\r\n", 400, "malformed"),
        # Heads that are none.
        (b"GARBAGE\r\n\r\n", 400, "malformed HTTP request: Invalid method encountered"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "malformed HTTP request: "),
        (b"GET /v2\r\n\r\n", 400, "malformed HTTP request: no request line of HTTP/1.0 or HTTP/1.1"),
        (b"GET /v2 RTSP/1.0\r\n\r\n", 400, "malformed HTTP request: no request line of HTTP/1.0 or HTTP/1.1"),
        (b"GET /v2 HTTP/1.2\r\nHost: x\r\n\r\n", 400, "malformed HTTP request: Invalid HTTP version"),
        (b"\x16\x03\x01\x02", 400, "malformed HTTP request: no request line of HTTP/1.0 or HTTP/1.1"),
        (b"GET /v2 HTTP/1.1\nHost: x\n\n", 400, "malformed HTTP request: "),
        (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed HTTP request: Expected HTTP/"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "no 'Host' header"),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "several 'Host' headers"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400, "Invalid header token"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", 400, "Invalid header value char"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\n(A): b\r\n\r\n", 400, "Invalid header token"),
        (b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400, "Unexpected whitespace after header value"),
        (
            b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 200_000 + b"\r\n\r\n",
            431,
            "the request's line and headers exceed the maximum allowed size of 65536 bytes. "
            "Use --http-max-header-size to increase the limit.",
        ),
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "the request's line and headers exceed"),
        (b"G" * 200_000, 431, "the request's line and headers exceed"),
    ],
)
async def test_what_is_no_request_is_refused(serve: Serve, sent: bytes, status: int, text: str) -> None:
    """With a sentence in JSON, and the end of the connection: what follows could be anything."""
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    await client.send(sent)
    found, headers, body = await client.response()
    assert (found, headers["connection"], headers["content-type"]) == (status, "close", "application/json")
    assert text in json.loads(body)["error"]
    assert await client.is_at_end()
    assert core.requests == []
    assert await is_alive(server)


async def test_a_wrong_chunk_behind_head_has_no_body(serve: Serve) -> None:
    client = await connect(await serve())
    await client.send(head("/v2/models/gate/infer", "Transfer-Encoding: chunked", method="HEAD") + b"zz\r\n")
    answer = b""
    with trio.fail_after(10):
        while part := await client.stream.receive_some():
            answer += part
    assert answer.startswith(b"HTTP/1.1 4")
    assert answer.endswith(b"\r\n\r\n")


async def test_a_refusal_after_head_has_a_body(serve: Serve) -> None:
    """It is no answer to that request."""
    client = await connect(await serve())
    await client.send(head("/v2", method="HEAD") + b"GARBAGE\r\n\r\n")
    answer = b""
    with trio.fail_after(10):
        while part := await client.stream.receive_some():
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"error":"malformed HTTP request: Invalid method encountered"}')


@pytest.mark.parametrize(
    "request_",
    [
        head("/v2", "Upgrade: websocket", "Connection: Upgrade", method="GET"),
        head(
            "/v2",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            method="GET",
        ),
        head("/v2", "Upgrade: TLS/1.0", "Connection: Upgrade", method="GET"),
    ],
)
async def test_other_upgrades_are_ignored(serve: Serve, request_: bytes) -> None:
    """The answer is that of the request, and the connection stays what it is."""
    client = await connect(await serve())
    for _ in range(2):
        await client.send(request_)
        assert (await client.response())[0] == 200


async def test_too_many_chunks(serve: Serve) -> None:
    """One more than Triton takes, of any size; as many as it takes are taken."""
    server = await serve(settings=replace(LOOPBACK, max_input_size=10_000_000))
    client = await connect(server)
    for count, status in ((MAX_CHUNKS, 200), (MAX_CHUNKS + 1, 400)):
        body = b"1\r\n \r\n" * (count - 1) + b"d\r\n" + EMPTY + b"\r\n0\r\n\r\n"
        await client.send(head(INFER, "Transfer-Encoding: chunked") + body)
        found, _, answer = await client.response()
        assert found == status
    assert json.loads(answer)["error"] == (
        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
    )


async def test_headers_keep_their_letter_case_where_they_are_forwarded(serve: Serve) -> None:
    core = FakeCore()
    client = await connect(await serve(services=make_services(core, forwarding="^x-")))
    await client.send(sized(INFER, EMPTY, "X-User: Ada", "x-USER: Bob", "X-Other: 1"))
    assert (await client.response())[0] == 200
    assert core.requests[0].parameters == {"X-User": "Ada", "x-USER": "Bob", "X-Other": "1"}


async def test_a_request_in_its_absolute_form(serve: Serve) -> None:
    client = await connect(await serve())
    await client.send(head("http://elsewhere:99/v2/health/live?x=1", method="GET"))
    assert (await client.response())[0] == 200


@pytest.mark.parametrize("path", ["/v2/models/%00", "/v2/models/..%2f..%2fetc%2fpasswd", "/v2/models/%ff%fe/config"])
async def test_names_that_are_none(serve: Serve, path: str) -> None:
    client = await connect(await serve())
    await client.send(head(path, method="GET"))
    assert (await client.response())[0] == 404


async def test_a_client_that_leaves_behind_pipelined_requests(serve: Serve) -> None:
    """It is noticed when the present answer cannot be written, and nothing stays behind."""
    server = await serve()
    client = await connect(server)
    await client.send(sized("/v2/models/gate/infer", EMPTY) + sized(INFER, EMPTY) * 3)
    await server.core.started.wait()
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    server.core.gate.set()
    server.stop.set()
    with trio.fail_after(10):
        await server.ended.wait()


class OneReader:
    """A wire on which one task reads at a time, as on a socket; there is nothing but what is put into `incoming`. Of
    what is sent at once it takes `room` bytes."""

    def __init__(self) -> None:
        self.room = 0
        self.to_wire, self.incoming = trio.open_memory_channel[bytes](10)
        self.sent = b""
        self.readers = 0
        self.is_lost = False

    async def receive(self, size: int) -> bytes:
        assert not self.readers, "another task is already reading"
        self.readers += 1
        try:
            return await self.incoming.receive()
        finally:
            self.readers -= 1

    async def send(self, data: bytes, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        self.sent += data
        return True

    def send_at_once(self, parts: Sequence[bytes]) -> int:
        taken = b"".join(parts)[: self.room]
        self.sent += taken
        self.room -= len(taken)
        return len(taken)


async def test_pieces_that_are_sent_at_once(nursery: trio.Nursery) -> None:
    """What the kernel does not take of one goes before the next, whatever that is; nothing is sent in between."""
    wire = OneReader()
    taken: list[bool] = []

    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, ())
        await exchange.send(b"first")
        for room, piece in ((0, b"none"), (100, b"whole"), (4, b"part"), (100, b"behind a part")):
            wire.room = room
            taken.append(exchange.send_at_once(piece))
        await exchange.send(b"next")
        wire.room = 1
        taken.append(exchange.send_at_once(b"last"))
        await exchange.end()

    http1 = Http1(answer, cast(Wire, wire), ConnectionLimits(), lambda limit: None, DateHeader())
    nursery.start_soon(http1.run)
    for number in range(1, 3):
        wire.to_wire.send_nowait(head("/", method="GET"))
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sent.count(chunked(b"first", b"whole", b"part", b"next", b"last")) == number
    assert taken == [False, True, True, False, True] * 2
    nursery.cancel_scope.cancel()


async def test_a_part_that_was_sent_at_once_is_completed_where_nothing_ends_the_body(nursery: trio.Nursery) -> None:
    wire = OneReader()

    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, ())
        wire.room = 2
        assert exchange.send_at_once(b"last")
        await exchange.end()

    http1 = Http1(answer, cast(Wire, wire), ConnectionLimits(), lambda limit: None, DateHeader())
    nursery.start_soon(http1.run)
    wire.to_wire.send_nowait(head("/", method="GET", version="1.0"))
    await trio.testing.wait_all_tasks_blocked()
    assert wire.sent.endswith(b"\r\n\r\nlast")
    nursery.cancel_scope.cancel()


async def test_a_request_that_ends_when_its_client_is_to_be_watched(nursery: trio.Nursery) -> None:
    """The wire is read for the next request then."""
    wire = OneReader()

    async def answer(exchange: Exchange) -> None:
        now = trio.current_time()
        http1.check_time(now)
        http1.check_time(now)  # it has taken long enough to be watched
        await exchange.reply(Reply(body=b"answer"))

    http1 = Http1(answer, cast(Wire, wire), ConnectionLimits(), lambda limit: None, DateHeader())
    nursery.start_soon(http1.run)
    for number in range(1, 4):
        wire.to_wire.send_nowait(head("/", method="GET"))
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sent.count(b"answer") == number
    nursery.cancel_scope.cancel()
