"""The ASGI side of an exchange; its limits are tested through the application in `test_app`."""

from __future__ import annotations

import pytest
import trio
from hypercorn.typing import ASGIReceiveEvent, HTTPScope

from protocol.errors import PayloadTooLarge
from protocol.http.transport import BodyLimit, has_body, read_body
from protocol.request_memory import RequestMemory


def too_long(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"{size} > {limit}")


async def read(chunks: list[bytes], limit: int = 100) -> object:
    messages: list[ASGIReceiveEvent] = [{"type": "http.request", "body": c, "more_body": True} for c in chunks]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    remaining = iter(messages)

    async def receive() -> ASGIReceiveEvent:
        await trio.lowlevel.checkpoint()
        return next(remaining)

    return await read_body(receive, {}, BodyLimit(limit, too_long), RequestMemory(1 << 20).share(), pause_seconds=5)


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


@pytest.mark.parametrize(
    ("version", "method", "headers", "expected"),
    [
        ("1.1", "GET", {}, False),
        ("1.1", "POST", {b"content-length": b"0"}, False),
        ("1.1", "GET", {b"content-length": b"5"}, True),
        ("1.1", "POST", {b"transfer-encoding": b"chunked"}, True),
        ("1.0", "POST", {}, False),
        ("2", "POST", {}, True),
        ("2", "GET", {}, True),
    ],
)
def test_which_requests_may_have_a_body(version: str, method: str, headers: dict[bytes, bytes], expected: bool) -> None:
    scope: HTTPScope = {"http_version": version, "method": method}  # type: ignore[typeddict-item]  # all that is read
    assert has_body(scope, headers) is expected
