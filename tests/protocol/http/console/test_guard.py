"""Lists of the console: written a little at a time, and what they are."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from protocol.console.records import LogRow
from protocol.http.console.guard import json_of
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Reply

ROWS = [LogRow(number, 1.5, "INFO", "trioton", "x" * 2000) for number in range(1000)]


@json_of
async def rows(request: HttpRequest, console: Any) -> object:
    return ROWS


def request(coding: bytes = b"") -> HttpRequest:
    console = SimpleNamespace(names=())
    services = SimpleNamespace(console=console, access=SimpleNamespace(keys=SimpleNamespace(current=None)))
    headers = {b"host": b"localhost", b"accept-encoding": coding}
    return cast(HttpRequest, SimpleNamespace(services=services, headers=headers))


async def reply_to(asked: HttpRequest) -> Reply:
    found = await rows(asked)
    assert found is not None
    assert (b"cache-control", b"no-store") in tuple(found.headers)
    return found


async def test_many_rows() -> None:
    found = await reply_to(request())
    texts = json.loads(bytes(found.body))
    assert [each["number"] for each in texts] == list(range(1000))
    assert texts[0] == {"number": 0, "time": 1.5, "level": "INFO", "logger": "trioton", "text": "x" * 2000}


async def test_they_are_compressed_if_the_client_likes() -> None:
    found = await reply_to(request(b"gzip"))
    assert (b"content-encoding", b"gzip") in tuple(found.headers)
    assert len(json.loads(gzip.decompress(bytes(found.body)))) == 1000


async def test_others_have_their_turn(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    turns: list[int] = []

    async def count() -> None:
        while True:
            turns.append(1)
            await trio.lowlevel.checkpoint()

    # As if each look at the clock were a slice later.
    times = iter(range(10**6))
    monkeypatch.setattr("protocol.sync.sliced.time", SimpleNamespace(perf_counter=lambda: next(times)))
    nursery.start_soon(count)
    await reply_to(request())
    assert len(turns) >= 1000
    nursery.cancel_scope.cancel()
