"""What one call costs the gRPC edge: `python -m tests.bench.grpc_edge`, in one process, with a model that answers at
once.

A client of recorded bytes sends bursts of calls over a socket, so that nearly all processor time is the edge's. A
figure is the least of many bursts, since whatever else runs on the machine only adds.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from protocol.core import ReplyChannel, Submitted
from protocol.grpc.server import GrpcSettings, serve_grpc
from protocol.grpc.settings import ConnectionLimits
from protocol.http2.output import PORTIONS
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from tests.bench.grpc_bytes import Calls, infer_request
from tests.protocol.grpc.edge_services import edge_services

MODEL = "add_sub"
MAX_BATCH = 64
STREAM_WINDOW = ConnectionLimits().stream_window


class _Taken:
    """Implements `protocol.core.Submitted`."""

    arrival = 0.0

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request

    def end(self) -> None:
        pass

    def give_up(self) -> None:
        pass


@dataclass(slots=True, eq=False)
class Echo:
    """A core of one model, whose only actor answers all that is there each time it wakes."""

    _to_model: Any = None
    _inbox: Any = field(default=None)

    def __post_init__(self) -> None:
        self._to_model, self._inbox = trio.open_memory_channel[Any](10_000)

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        return False

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted:
        self._to_model.send_nowait((request, reply_to))
        return _Taken(request)

    def flush(self) -> None:
        pass

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        reply, answers = trio.open_memory_channel[InferenceResponse](1)
        self._to_model.send_nowait((request, reply))
        return await answers.receive()

    async def run(self) -> None:
        while True:
            batch = [await self._inbox.receive()]
            while len(batch) < MAX_BATCH and self._inbox.statistics().current_buffer_used:
                batch.append(self._inbox.receive_nowait())
            for request, reply in batch:
                outputs = [Tensor(f"OUT{each.name}", each.datatype, each.shape, each.data) for each in request.inputs]
                reply.send_nowait(InferenceResponse(request.model_name, 1, outputs, id=request.id))


@dataclass(slots=True, eq=False)
class Client:
    """`Calls` over a socket."""

    socket: Any
    calls: Calls

    async def greet(self) -> None:
        await self.socket.send_all(self.calls.greeting())

    async def burst(self) -> float:
        """Seconds of processor time for each call of one burst."""
        calls = self.calls
        data = calls.burst()
        if calls.streaming and len(data) > STREAM_WINDOW // PORTIONS * 3:
            raise ValueError(f"a burst of {len(data)} bytes is more than a stream's window takes at any time")
        began = time.process_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.socket.send_all, data)
            while not calls.take(await self.socket.receive_some(1 << 20)):
                pass
        return (time.process_time() - began) / calls.calls


async def measure(calls: int, size: int, bursts: int, *, streaming: bool = False) -> float:
    """The least processor time of a call, in seconds."""
    core, stop = Echo(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.run)
        services = edge_services(core)  # type: ignore[arg-type]  # the part of a core that infer calls use
        host, port = await nursery.start(serve_grpc, services, GrpcSettings(host="127.0.0.1", port=0), stop)
        async with await trio.open_tcp_stream(host, port) as stream:
            client = Client(stream, Calls(_message(size), calls, streaming))
            await client.greet()
            least = min([await client.burst() for _ in range(bursts)])
        nursery.cancel_scope.cancel()
    return least


def _message(size: int) -> bytes:
    shape = (1, size // 4)
    return infer_request(MODEL, {"PUT0": shape, "PUT1": shape}, [bytes(size)] * 2, "1")


ROWS: Sequence[tuple[str, int, int, bool]] = (
    ("unary, 1 in flight", 1, 64, False),
    ("unary, 16 in flight", 16, 64, False),
    ("unary, 64 in flight", 64, 64, False),
    ("streaming, 16 in flight", 16, 64, True),
    ("unary, 600 kB in and out", 1, 300_000, False),
)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=500)
    bursts = parser.parse_args(arguments).bursts
    for name, calls, size, streaming in ROWS:
        least = trio.run(functools.partial(measure, calls, size, bursts, streaming=streaming))
        say(f"{name:26}{least * 1e6:8.1f} µs of processor time for a call")


if __name__ == "__main__":
    main()
