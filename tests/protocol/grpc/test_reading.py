"""Connections over sockets, which one task reads for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing
from tritonclient.grpc import service_pb2

from protocol.grpc.connection.outgoing import Outgoing
from tests.protocol.grpc.caller import SERVICE
from tests.protocol.grpc.client import Client
from tests.protocol.grpc.served import Served, serving, wire_request
from tests.protocol.loop_turns import Steps

INFER = f"{SERVICE}/ModelInfer"


@asynccontextmanager
async def connected(server: Served) -> AsyncIterator[Client]:
    host, port = server.address.split(":")
    async with await trio.open_tcp_stream(host, int(port)) as transport:
        client = Client(transport)
        await client.start()
        yield client


async def test_a_defect_costs_its_connection_only(
    has_fast_path: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server, connected(server) as first, connected(server) as second:
        assert (await second.call(INFER, wire_request().SerializeToString())).status == 0
        with monkeypatch.context() as patched:
            patched.setattr(Outgoing, "end_burst", lambda self: 1 / 0)
            await first.start_call(INFER, wire_request("forever").SerializeToString())
            await first.read_to_end()
            await trio.testing.wait_all_tasks_blocked()
        assert "a gRPC connection failed" in caplog.text
        given_up = ["given up"] * has_fast_path  # a task has not begun yet
        assert [each.ending for each in server.core.submitted] == ["answered", *given_up]
        assert (await second.call(INFER, wire_request().SerializeToString())).status == 0


@pytest.mark.parametrize("piece", [1, 100])
async def test_a_call_in_pieces(piece: int) -> None:
    async with serving() as server, connected(server) as client:
        stream = await client.open(INFER, holds_back=True)
        message = wire_request().SerializeToString()
        client.h2.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
        data = client.h2.data_to_send()
        for start in range(0, len(data), piece):
            await client.transport.send_all(data[start : start + piece])
        assert (await client.finish(stream)).status == 0


@pytest.mark.parametrize("piece", [1 << 20, 100_000, 65_543])
async def test_a_large_message_with_more_behind_it(piece: int) -> None:
    """Its rest is received where it stays, and what follows it in the same read is no part of it."""
    async with serving() as server, connected(server) as client:
        await client.call(INFER, wire_request().SerializeToString())  # the server's settings have come
        large, streams = wire_request(values=np.ones(100_000, np.float32)).SerializeToString(), []
        for message in (large, wire_request().SerializeToString(), b"\xff", large):
            stream = await client.open(INFER, holds_back=True)
            streams.append(stream)
            client.h2.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
            if len(streams) < 4:  # so many are one too many, where they come before the first response
                client.h2.ping(b"behind!!")
        data = client.h2.data_to_send()
        for start in range(0, len(data), piece):
            await client.transport.send_all(data[start : start + piece])
        statuses = [(await client.finish(stream)).status for stream in streams]
        assert statuses == [0, 0, 3, 0]
        assert server.services.memory.held == 0


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 1, 255])
@pytest.mark.parametrize("size", [132_000, 500_000, 1_040_000])
async def test_large_padded_frames(size: int, padding: int) -> None:
    """As large as the server's settings allow. What is padding is no part of the message, and comes back into the
    windows: more than they hold is sent."""
    values = np.arange(size // 4, dtype=np.float32)
    message = wire_request(values=values).SerializeToString()
    async with serving() as server, connected(server) as client:
        await client.call(INFER, wire_request().SerializeToString())  # the server's settings have come
        for _ in range(20):
            stream = await client.open(INFER, holds_back=True)
            data = b"\0" + len(message).to_bytes(4, "big") + message
            while client.h2.local_flow_control_window(stream) < len(data) + 1 + padding:
                await client.read()
            client.h2.send_data(stream, data, end_stream=True, pad_length=padding)
            await client.flush()
            response = await client.finish(stream)
            assert response.status == 0
        answer = service_pb2.ModelInferResponse.FromString(response.messages[0])
        assert answer.raw_output_contents[0] == values.tobytes()
        assert server.services.memory.held == 0
        assert server.counts == {}


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_many_texts_in_typed_contents(method: str) -> None:
    """The loop turns while they are read."""
    texts = [b"some words", b""] * 50_000
    request = service_pb2.ModelInferRequest(model_name="echo", id="7")
    request.inputs.add(name="x", datatype="BYTES", shape=[len(texts)]).contents.bytes_contents.extend(texts)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with serving() as server, connected(server) as client, trio.open_nursery() as nursery:
        stream = await client.start_call(f"{SERVICE}/{method}", request.SerializeToString())
        nursery.start_soon(turn)
        response = await client.finish(stream)
        nursery.cancel_scope.cancel()
    assert response.status == 0
    assert turns > 20
    (received,) = server.core.requests
    assert received.inputs[0].as_numpy().tolist() == texts


async def test_a_client_that_leaves_without_a_word() -> None:
    async with serving() as server, connected(server) as client:
        await client.start_call(INFER, wire_request("forever").SerializeToString())
        await server.core.came.wait()
        await client.transport.aclose()
        await server.core.cancellation.wait()
        assert [each.ending for each in server.core.submitted] == ["given up"]
        assert server.services.memory.held == 0


@pytest.mark.parametrize("has_fast_path", [True], indirect=True, ids=["fast"])
async def test_of_many_clients_that_leave_at_once_some_are_ended_in_a_turn() -> None:
    """As over HTTP/1: the others are not even woken."""
    async with serving() as served:
        host, port = served.address.rsplit(":", 1)
        clients = [Client(await trio.open_tcp_stream(host, int(port))) for _ in range(60)]
        for client in clients:
            await client.start()
            assert (await client.call(INFER, wire_request().SerializeToString())).status == 0
        await trio.testing.wait_all_tasks_blocked()
        with Steps("_run_handler") as steps:
            for client in clients:
                await trio.aclose_forcefully(client.transport)
            while served.services.connections.counts()["grpc"].connections:
                await trio.lowlevel.checkpoint()
    assert max(steps.of_turns) <= 32
    assert sum(steps.of_turns) >= 120
