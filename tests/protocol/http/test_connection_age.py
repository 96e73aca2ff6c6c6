"""Connections that have become too old: their clients are told so with a response, and lose no request over it."""

from __future__ import annotations

from dataclasses import replace

import h2.events
import pytest
import trio

from protocol.http.server import HttpSettings
from protocol.http.settings import ConnectionLimits
from tests.protocol.http.conftest import Serve
from tests.protocol.http.http1.test_connection import EMPTY, INFER, connect, head, sized
from tests.protocol.http.http2_client import Http2Client

pytestmark = pytest.mark.slow

YOUNG = HttpSettings(host="127.0.0.1", port=0, connections=ConnectionLimits(max_connection_age=0.05))


@pytest.mark.parametrize("request_", [sized(INFER, EMPTY), head("/v2/health/ready", method="GET")])
async def test_the_next_answer_is_the_last_one(serve: Serve, request_: bytes) -> None:
    """Every request until then is answered, and the next connection has its own age."""
    server = await serve(settings=YOUNG)
    with trio.fail_after(60):
        for _ in range(2):
            client = await connect(server)
            is_last = False
            while not is_last:
                await client.send(request_)
                status, headers, _ = await client.response()
                assert status == 200
                is_last = headers.get("connection") == "close"
            assert await client.is_at_end()


async def test_an_old_connection_without_a_request_waits_for_one(serve: Serve) -> None:
    """It is closed behind that, so that none is lost which is on its way."""
    server = await serve(settings=YOUNG)
    old, younger = await connect(server), await connect(server)
    with trio.fail_after(60):
        for client in (younger, old):
            while True:
                await client.send(sized(INFER, EMPTY))
                status, headers, _ = await client.response()
                assert status == 200
                if headers.get("connection") == "close":
                    break


async def test_a_request_that_runs_is_answered(serve: Serve) -> None:
    server = await serve(settings=YOUNG)
    client, other = await connect(server), await connect(server)
    await client.send(sized("/v2/models/gate/infer", EMPTY))
    await server.core.started.wait()
    with trio.fail_after(60):
        while True:  # until one that is as old has ended
            await other.send(sized(INFER, EMPTY))
            if (await other.response())[1].get("connection") == "close":
                break
        server.core.gate.set()
        status, _, _ = await client.response()
        assert status == 200


async def test_an_http2_connection_ends_by_goaway(serve: Serve) -> None:
    """In one write with a response, if any is due."""
    server = await serve(settings=YOUNG)
    client = Http2Client(await server.connect())
    with trio.fail_after(60):
        while not any(isinstance(event, h2.events.ConnectionTerminated) for event in client.events):
            stream_id = await client.start("POST", INFER, EMPTY)
            assert (await client.answer(stream_id))[0] == 200
        await client.read_to_end()


async def test_without_a_limit_none_is_told(serve: Serve) -> None:
    server = await serve(settings=replace(YOUNG, connections=ConnectionLimits()))
    client = await connect(server)
    for _ in range(3):
        await client.send(sized(INFER, EMPTY))
        assert "connection" not in (await client.response())[1]
