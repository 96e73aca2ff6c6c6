"""An exchange over ASGI; its limits are tested through the application in `test_app`."""

from __future__ import annotations

import sys
from typing import cast

import pytest
import trio
from hypercorn.typing import ASGIReceiveEvent, ASGISendEvent, HTTPScope

from protocol.errors import InvalidArgument, Overloaded, PayloadTooLarge
from protocol.http.body import BodyLimit
from protocol.http.exchange import Exchange
from protocol.http.http2.upgraded.exchange import AsgiExchange, as_asgi
from protocol.http.reply import Reply
from protocol.limits.answer_memory import SMALL, AnswerMemory
from protocol.limits.request_memory import STREAM_MEMORY, RequestMemory, RequestShare

SCOPE = cast(HTTPScope, {"type": "http", "method": "POST", "raw_path": b"/", "query_string": b"", "headers": []})


async def nothing_comes() -> ASGIReceiveEvent:
    raise AssertionError


async def test_a_reply_counts_while_it_is_sent() -> None:
    server = RequestMemory(100 * SMALL)
    answers = AnswerMemory(server)
    held: list[int] = []

    async def send(event: ASGISendEvent) -> None:
        await trio.lowlevel.checkpoint()
        held.append(server.held)

    await AsgiExchange(SCOPE, nothing_comes, send, answers).reply(Reply(body=bytes(10)))
    assert (held, server.held) == ([10, 10], 0)


async def test_a_stream_counts_while_it_is_served() -> None:
    """One that there is no memory for is refused, and the refusal is counted."""
    server, refused = RequestMemory(STREAM_MEMORY), list[str]()
    statuses: list[int] = []

    async def send(event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            statuses.append(event["status"])

    async def app(exchange: Exchange) -> None:
        held.append(server.held)
        await serve(SCOPE, trio.sleep_forever, send, sys.exit, sys.exit)
        await exchange.reply(Reply())

    held: list[int] = []
    serve = as_asgi(app, server, refused.append)
    await serve(SCOPE, trio.sleep_forever, send, sys.exit, sys.exit)
    assert (held, statuses, server.held, refused) == ([STREAM_MEMORY], [503, 200], 0, ["max_request_memory"])


async def test_a_reply_that_there_is_no_memory_for_has_not_begun() -> None:
    answers = AnswerMemory(RequestMemory(100 * SMALL))
    answers.take(90 * SMALL)

    async def send(event: ASGISendEvent) -> None:
        raise AssertionError(event)

    exchange = AsgiExchange(SCOPE, nothing_comes, send, answers)
    with pytest.raises(Overloaded):
        await exchange.reply(Reply(body=bytes(20 * SMALL)))
    assert not exchange.has_started
    assert answers.held == 90 * SMALL


def too_long(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"{size} > {limit}")


async def read(chunks: list[bytes], limit: int = 100, *, declared: bytes | None = None) -> object:
    messages: list[ASGIReceiveEvent] = [{"type": "http.request", "body": c, "more_body": True} for c in chunks]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    remaining = iter(messages)

    async def receive() -> ASGIReceiveEvent:
        await trio.lowlevel.checkpoint()
        return next(remaining)

    async def send(event: ASGISendEvent) -> None:
        raise AssertionError(event)

    scope = cast(
        HTTPScope,
        {
            "method": "POST",
            "raw_path": b"/",
            "query_string": b"",
            "headers": [] if declared is None else [(b"content-length", declared)],
        },
    )
    exchange = AsgiExchange(scope, receive, send, AnswerMemory(RequestMemory(sys.maxsize)))
    share = RequestShare(RequestMemory(1 << 20))
    return await exchange.read_body(BodyLimit(limit, too_long), share, pause_seconds=5)


async def test_a_body_of_one_chunk_is_not_copied() -> None:
    chunk = b"x" * 50
    assert await read([chunk]) is chunk


@pytest.mark.parametrize("chunks", [[], [b""], [b"ab", b"", b"c"], [b"x"] * 100])
async def test_chunks_are_joined(chunks: list[bytes]) -> None:
    assert await read(chunks) == b"".join(chunks)


async def test_the_limit_is_the_last_size_that_passes() -> None:
    assert await read([b"x" * 60, b"y" * 40]) == b"x" * 60 + b"y" * 40
    with pytest.raises(PayloadTooLarge, match="101 > 100"):
        await read([b"x" * 60, b"y" * 41])


@pytest.mark.parametrize("declared", [b"0" * 5000, b"9" * 5000, b"0" * 21, b"-1", b"\xb2"])
async def test_a_declared_length_that_is_none_is_refused(declared: bytes) -> None:
    with pytest.raises(InvalidArgument, match="Content-Length"):
        await read([b"x"], declared=declared)
