"""What is left of a connection that has ended: nothing that only the garbage collector would find."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio

from protocol.grpc.connection.calls import Calls
from protocol.grpc.connection.connection import Connection
from protocol.grpc.connection.direct_calls import DirectCalls
from protocol.http2.connection import ServerConnection
from protocol.http2.reader import Http2Reader
from tests.protocol.grpc.caller import SERVICE
from tests.protocol.grpc.client import Client
from tests.protocol.grpc.served import serving, wire_request

OF_A_CONNECTION = (Calls, Connection, DirectCalls, Http2Reader, ServerConnection)


@pytest.fixture
def found() -> Iterator[list[object]]:
    """Where the collector puts what it finds."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_connection_that_has_ended_is_freed_at_once(waits: bool, found: list[object]) -> None:
    path, message = f"{SERVICE}/ModelInfer", wire_request().SerializeToString()
    async with serving() as served:
        host, port = served.address.rsplit(":", 1)
        client = Client(await trio.open_tcp_stream(host, int(port)))
        await client.start()
        if waits:
            assert (await client.call(path, message)).status == 0
        else:
            await client.start_call(path, message)
        await client.transport.aclose()
        served.stop.set()
        await served.has_ended.wait()
        served.core.submitted.clear()
        gc.collect()
    assert [type(each).__name__ for each in found if isinstance(each, OF_A_CONNECTION)] == []
