"""Clients that send anything over real sockets: they cost themselves their calls and connections, and nobody else.

Each connection sends frames that mostly make sense, in any order and cut anywhere, and ends in any way that a socket
can.
`TRIOTON_FUZZ_EXAMPLES` is how many connections there are, `TRIOTON_FUZZ_SEED` another start.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
import trio.lowlevel
from hpack.hpack import Encoder
from tritonclient.grpc import service_pb2

from protocol.grpc.settings import ConnectionLimits, GrpcSettings, Keepalive
from protocol.http2 import frames
from protocol.http2.frames import PREFACE, frame, frame_header
from tests.protocol.grpc.caller import SERVICE
from tests.protocol.grpc.client import REQUEST_HEADERS, Client, framed
from tests.protocol.grpc.served import serving

pytestmark = pytest.mark.slow

CONNECTIONS = int(os.environ.get("TRIOTON_FUZZ_EXAMPLES", "300"))
SEED = int(os.environ.get("TRIOTON_FUZZ_SEED", "1"))
AT_ONCE = 8
MOST_STEPS = 30

METHODS = ["ModelInfer", "ModelInfer", "ModelStreamInfer", "ModelStreamInfer", "ServerLive", "ModelConfig", "Nothing"]
MODELS = ["echo", "echo", "wait", "forever", "unavailable", "unknown", "many", "many_forever"]
MORE_HEADERS = [
    *[("grpc-timeout", value) for value in ("1m", "10m", "0n", "x")],
    *[("grpc-encoding", value) for value in ("gzip", "identity", "other")],
    *[("Upper", "x"), ("connection", "close"), ("te", "gzip"), ("x-space", " v "), (":late", "x"), ("a b", "c")],
    *[("x-long", "v" * 3000), ("triton_grpc_error", "true"), ("host", "other")],
]
SETTINGS = [
    (3, 0),
    (3, 100),
    (4, 0),
    (4, 1),
    (4, 65535),
    (4, 2**31 - 1),
    (4, 2**31),
    (5, 16384),
    (5, 1),
    (1, 0),
    (99, 7),
]
INCREMENTS = [0, 1, 100, 65535, 1 << 20, 2**31 - 1]


class Traffic:
    """What one client sends."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._encoder = Encoder()
        self._next_stream = 1
        self._parts = [PREFACE, frame(frames.SETTINGS, 0, 0)]
        self._steps: list[Callable[[], None]] = [
            *[self._open] * 8,
            *[self._send_data] * 10,
            *[self._reset, self._open_window, self._change_settings, self._ping, self._prioritize],
            *[self._send_trailers, self._say_goodbye, self._send_unknown, self._send_broken, self._flood],
        ]

    def make(self) -> bytes:
        chance = self._chance
        for _ in range(chance.randint(1, MOST_STEPS)):
            chance.choice(self._steps)()
        data = b"".join(self._parts)
        return data[: chance.randint(0, len(data))] if chance.random() < 0.2 else data

    def _add(self, kind: int, flags: int, stream: int, body: bytes = b"") -> None:
        if kind in (frames.DATA, frames.HEADERS) and self._chance.random() < 0.2:
            padding = self._chance.choice([0, 1, 7, 255])
            body, flags = bytes([padding]) + body + bytes(padding), flags | frames.IS_PADDED
        self._parts.append(frame(kind, flags, stream, body))

    def _stream(self) -> int:
        """Mostly one that was opened."""
        if self._next_stream == 1 or self._chance.random() < 0.03:
            return self._chance.randint(0, self._next_stream + 3)
        return self._chance.randrange(1, self._next_stream, 2)

    def _message(self) -> bytes:
        chance = self._chance
        data = bytes(chance.choice([0, 4, 4, 100, 9000, 70_000, 200_000]))
        request = service_pb2.ModelInferRequest(model_name=chance.choice(MODELS), id=str(chance.randint(0, 9)))
        request.inputs.add(name="x", datatype="UINT8", shape=[len(data)])
        if chance.random() < 0.9:
            request.raw_input_contents.append(data)
        request.parameters["responses"].int64_param = chance.randint(0, 5)
        if chance.random() < 0.1:
            request.outputs.add(name="x").parameters["classification"].int64_param = chance.randint(0, 3)
        message: bytes = framed(request.SerializeToString(), flag=chance.choice([0] * 9 + [1]))
        return message

    def _headers(self) -> bytes:
        chance = self._chance
        fields = {**REQUEST_HEADERS, ":path": f"{SERVICE}/{chance.choice(METHODS)}"}
        more = [chance.choice(MORE_HEADERS)] if chance.random() < 0.2 else []
        block: bytes = self._encoder.encode([*fields.items(), *more])
        return block

    def _open(self) -> None:
        chance = self._chance
        block, stream = self._headers(), self._next_stream
        self._next_stream += chance.choice([2, 2, 2, 2, 4])
        ends = chance.choice([0, 0, 0, frames.END_STREAM])
        if chance.random() < 0.1:
            block, ends = b"\0\0\0\0\x10" + block, ends | frames.HAS_PRIORITY
        if chance.random() < 0.15:
            cut = chance.randint(0, len(block))
            self._add(frames.HEADERS, ends, stream, block[:cut])
            for _ in range(chance.choice([0, 0, 1, 3, 70])):
                self._add(frames.CONTINUATION, 0, stream)
            self._add(frames.CONTINUATION, frames.END_HEADERS, stream, block[cut:])
        else:
            self._add(frames.HEADERS, ends | frames.END_HEADERS, stream, block)
        if not ends and chance.random() < 0.8:
            self._send(stream, self._message(), ends=chance.random() < 0.6)

    def _send(self, stream: int, data: bytes, *, ends: bool) -> None:
        """In frames of any size."""
        size = self._chance.choice([1000, 16384, 100_000, 1 << 20])
        while len(data) > size:
            self._add(frames.DATA, 0, stream, data[:size])
            data = data[size:]
        self._add(frames.DATA, frames.END_STREAM if ends else 0, stream, data)

    def _send_data(self) -> None:
        chance = self._chance
        message = self._message()
        data = chance.choice([message, message * 2, message[: chance.randint(0, len(message))], b"", b"\5" * 9])
        self._send(self._stream(), data, ends=chance.random() < 0.3)

    def _reset(self) -> None:
        self._add(frames.RST_STREAM, 0, self._stream(), self._chance.randint(0, 20).to_bytes(4, "big"))

    def _open_window(self) -> None:
        stream = self._chance.choice([0, self._stream()])
        self._add(frames.WINDOW_UPDATE, 0, stream, self._chance.choice(INCREMENTS).to_bytes(4, "big"))

    def _change_settings(self) -> None:
        body = struct.pack(">HI", *self._chance.choice(SETTINGS))
        self._add(frames.SETTINGS, 0, 0, body * self._chance.choice([1, 1, 2]))

    def _ping(self) -> None:
        self._add(frames.PING, self._chance.choice([0, frames.ACK]), 0, bytes(8))

    def _prioritize(self) -> None:
        self._add(frames.PRIORITY, 0, self._stream(), struct.pack(">IB", self._stream(), 7))

    def _send_trailers(self) -> None:
        block = self._encoder.encode([("x-trailer", "v")])
        self._add(frames.HEADERS, frames.END_HEADERS | self._chance.choice([0, 1, 1]), self._stream(), block)

    def _say_goodbye(self) -> None:
        self._add(frames.GOAWAY, 0, 0, bytes(8))

    def _send_unknown(self) -> None:
        self._add(self._chance.randint(10, 255), self._chance.randint(0, 255), self._stream(), b"whatever")

    def _send_broken(self) -> None:
        """Now and then, since it is mostly the end."""
        chance = self._chance
        if chance.random() < 0.2:
            kind, size = chance.randint(0, 9), chance.choice([0, 1, 3, 9, 200_000, 1 << 20, 1 << 23])
            self._parts.append(frame_header(size, kind, chance.randint(0, 255), self._stream()))
            self._parts.append(chance.randbytes(chance.randint(0, 50)))

    def _flood(self) -> None:
        chance = self._chance
        kind = chance.choice(["reset", "empty", "settings", "ping", "window"])
        for _ in range(chance.choice([3, 30, 300])):
            match kind:
                case "reset":
                    self._open()
                    self._add(frames.RST_STREAM, 0, self._next_stream - 2, bytes(4))
                case "empty":
                    self._parts.append(frame(frames.DATA, 0, self._stream()))
                case "settings":
                    self._parts.append(frame(frames.SETTINGS, 0, 0))
                case "ping":
                    self._parts.append(frame(frames.PING, 0, 0, bytes(8)))
                case "window":
                    self._parts.append(frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))


async def be_hostile(address: str, seed: int) -> None:
    """One connection, from its first byte to an end of some kind."""
    chance = random.Random(seed)
    data = Traffic(chance).make()
    host, port = address.split(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        with suppress(trio.BrokenResourceError):  # the server had enough
            position = 0
            while position < len(data):
                size = chance.choice([1, 9, 100, 5000, 1 << 17, 1 << 20])
                with trio.move_on_after(1):  # the server reads no further
                    await stream.send_all(data[position : position + size])
                position += size
                if chance.random() < 0.1:
                    await trio.lowlevel.checkpoint()
            match chance.choice(["reset", "close", "half", "read", "read"]):
                case "reset":
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                case "half":
                    await stream.send_eof()
                    while await stream.receive_some(65536):
                        pass
                case "read":
                    with trio.move_on_after(0.02):
                        while await stream.receive_some(65536):
                            pass


async def test_hostile_clients_harm_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(
        send_timeout=1, receive_timeout=1, max_stream_resets=100, keepalive=Keepalive(max_ping_strikes=5)
    )
    seeds = iter(range(SEED * 1_000_000, SEED * 1_000_000 + CONNECTIONS))
    async with serving(GrpcSettings(host="127.0.0.1", port=0, limits=limits), seconds=60 + CONNECTIONS) as served:

        async def be_hostile_in_turn() -> None:
            for seed in seeds:
                await be_hostile(served.address, seed)

        host, port = served.address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as transport, trio.open_nursery() as hostile:
            for _ in range(AT_ONCE):
                hostile.start_soon(be_hostile_in_turn)
            client = Client(transport)
            await client.start()
            message = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[b"\1\2\3\4"])
            message.inputs.add(name="x", datatype="INT32", shape=[1])
            while len(hostile.child_tasks):
                response = await client.call(f"{SERVICE}/ModelInfer", message.SerializeToString())
                assert response.status == 0
                served.core.requests.clear()
                await trio.sleep(0.01)
        while served.core.in_flight or served.services.memory.held:  # noqa: ASYNC110  (of counters)
            await trio.sleep(0.01)
        assert all(each.ending for each in served.core.submitted)
    defects = [record for record in caplog.records if record.name != "protocol.log.failure_log"]
    assert defects == [], "no defect is in the log"
