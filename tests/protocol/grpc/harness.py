"""A served connection and a client that can misbehave, joined by streams in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h2.settings
import trio
import trio.testing
from grpclib.const import Cardinality, Handler

from protocol.errors import NotFound
from protocol.grpc.call.stream import Stream
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.settings import ConnectionLimits
from protocol.limits.counter import LimitCounter
from tests.protocol.grpc.client import Client

INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED = 3, 4, 5, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14


@dataclass
class Calls:
    """Handlers under test, and what became of them."""

    gate: trio.Event = field(default_factory=trio.Event)
    started: int = 0
    cancelled: int = 0
    received: list[bytes] = field(default_factory=list)
    _has_started: trio.Event = field(default_factory=trio.Event)

    async def wait_started(self) -> None:
        """Until a `Wait` has its message."""
        await self._has_started.wait()

    async def echo(self, stream: Stream) -> None:
        message = await stream.recv_message()
        self.received.append(bytes(message))
        await stream.send_message(bytes(message))

    async def wait(self, stream: Stream) -> None:
        message = await stream.recv_message()
        self.started += 1
        self._has_started.set()
        try:
            await self.gate.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        await stream.send_message(bytes(message))

    async def chat(self, stream: Stream) -> None:
        async for message in stream:
            await stream.send_message(bytes(message))

    async def deaf(self, stream: Stream) -> None:
        """Reads one message when told to, then no more."""
        self.started += 1
        await self.gate.wait()
        self.received.append(bytes(await stream.recv_message()))
        await trio.sleep_forever()

    async def early(self, stream: Stream) -> None:
        raise NotFound("nothing here")

    async def defect(self, stream: Stream) -> None:
        raise RuntimeError("a defect of the test")

    async def flood(self, stream: Stream) -> None:
        """As many large messages as the client takes."""
        await stream.recv_message()
        while True:
            await stream.send_message(bytes(100_000))
            self.started += 1

    def mapping(self) -> dict[str, Handler]:
        unary, both = Cardinality.UNARY_UNARY, Cardinality.STREAM_STREAM
        handlers: dict[str, tuple[Callable[[Stream], Awaitable[None]], Cardinality]] = {
            "Echo": (self.echo, unary),
            "Wait": (self.wait, unary),
            "Chat": (self.chat, both),
            "Deaf": (self.deaf, both),
            "Early": (self.early, both),
            "Defect": (self.defect, unary),
            "Flood": (self.flood, both),
        }
        return {
            f"/test.Test/{name}": Handler(func, cardinality, memoryview, bytes)
            for name, (func, cardinality) in handlers.items()
        }


@dataclass
class Peers:
    client: Client
    connection: Connection
    calls: Calls
    has_ended: trio.Event
    server_writes: list[int]
    limits: LimitCounter

    @property
    def counts(self) -> dict[str, int]:
        """How often each limit has refused something."""
        return {limit: count for (protocol, limit), count in self.limits.counts().items() if protocol == "grpc"}


@asynccontextmanager
async def connected(
    limits: ConnectionLimits | None = None,
    *,
    acknowledges: bool = True,
    client_settings: dict[h2.settings.SettingCodes, int] | None = None,
    lockstep: bool = False,
) -> AsyncIterator[Peers]:
    """A client and a served connection. Leaving drops the connection and waits for the server's end."""
    make = trio.testing.lockstep_stream_pair if lockstep else trio.testing.memory_stream_pair
    client_end, server_end = make()
    writes: list[int] = []
    original = server_end.send_all

    async def counting_send_all(data: bytes | bytearray | memoryview) -> None:
        writes.append(len(data))
        await original(data)

    server_end.send_all = counting_send_all  # type: ignore[method-assign]  # to count the writes
    calls = Calls()
    counts = LimitCounter()
    connection = Connection(server_end, Shared(calls.mapping(), limits or ConnectionLimits(), counts))
    has_ended = trio.Event()

    async def run() -> None:
        await connection.run()
        has_ended.set()

    client = Client(client_end, acknowledges=acknowledges)
    if client_settings:
        client.h2.local_settings = h2.settings.Settings(client=True, initial_values=client_settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await client.start()
        yield Peers(client, connection, calls, has_ended, writes, counts)
        await trio.aclose_forcefully(client_end)
        with trio.fail_after(30):
            await has_ended.wait()
