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
from hpack.hpack import Encoder
from tritonclient.grpc import service_pb2

from protocol.core import ReplyChannel, Submitted
from protocol.grpc.server import GrpcSettings, serve_grpc
from protocol.grpc.settings import ConnectionLimits
from protocol.http2 import frames
from protocol.http2.client_settings import pack_settings
from protocol.http2.frames import PREFACE, frame
from protocol.http2.output import PORTIONS
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from tests.protocol.grpc.edge_services import edge_services

MODEL = "add_sub"
MAX_BATCH = 64
DATA_FRAME = 1 << 17
WINDOW = 2**31 - 1
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
    """`calls` in a burst, each with two tensors of `size` bytes; with `streaming` all on one stream.

    It waits for no windows: what a burst sends on one stream must fit those that the server has open at any time.
    """

    socket: Any
    calls: int
    size: int
    streaming: bool
    _next_stream: int = 1
    _message: bytes = b""
    _first_block: bytes = b""
    _block: bytes = b""
    # Of what was received: the begin of a frame's header, and how many bytes of the last frame are still to come.
    _rest: bytes = b""
    _skip: int = 0

    def __post_init__(self) -> None:
        request = service_pb2.ModelInferRequest(model_name=MODEL, id="1")
        for name in ("PUT0", "PUT1"):
            request.inputs.add(name=name, datatype="FP32", shape=[1, self.size // 4])
            request.raw_input_contents.append(bytes(self.size))
        message = request.SerializeToString()
        self._message = b"\0" + len(message).to_bytes(4, "big") + message
        method = "ModelStreamInfer" if self.streaming else "ModelInfer"
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/inference.GRPCInferenceService/{method}"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        encoder = Encoder()
        self._first_block, self._block = encoder.encode(headers), encoder.encode(headers)

    async def greet(self) -> None:
        settings = pack_settings({4: WINDOW, 5: 1 << 22})  # type: ignore[dict-item]  # the codes of window and frame
        window = frame(frames.WINDOW_UPDATE, 0, 0, (WINDOW - 65535).to_bytes(4, "big"))
        await self.socket.send_all(PREFACE + frame(frames.SETTINGS, 0, 0, settings) + window)
        if self.streaming:
            await self.socket.send_all(frame(frames.HEADERS, frames.END_HEADERS, 1, self._first_block))

    def _burst(self) -> bytes:
        parts: list[bytes] = []
        for _ in range(self.calls):
            stream = 1 if self.streaming else self._next_stream
            if not self.streaming:
                block = self._first_block if stream == 1 else self._block
                parts.append(frame(frames.HEADERS, frames.END_HEADERS, stream, block))
                self._next_stream += 2
            for start in range(0, len(self._message), DATA_FRAME):
                is_last = not self.streaming and start + DATA_FRAME >= len(self._message)
                payload = self._message[start : start + DATA_FRAME]
                parts.append(frame(frames.DATA, frames.END_STREAM if is_last else 0, stream, payload))
        return b"".join(parts)

    async def burst(self) -> float:
        """Seconds of processor time for each call of one burst."""
        data = self._burst()
        if self.streaming and len(data) > STREAM_WINDOW // PORTIONS * 3:
            raise ValueError(f"a burst of {len(data)} bytes is more than a stream's window takes at any time")
        began = time.process_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.socket.send_all, data)
            await self._receive()
        return (time.process_time() - began) / self.calls

    async def _receive(self) -> None:
        """All responses: a whole message each on a stream, else the trailers."""
        answered = 0
        while answered < self.calls or self._skip:
            data = self._rest + await self.socket.receive_some(1 << 20)
            position = self._skip
            while len(data) - position >= frames.HEADER_SIZE:
                size = int.from_bytes(data[position : position + 3], "big")
                kind, flags = data[position + 3], data[position + 4]
                if kind in (frames.RST_STREAM, frames.GOAWAY):
                    raise RuntimeError("the server has refused a call")
                ends = kind == frames.HEADERS and flags & frames.END_STREAM
                answered += kind == frames.DATA if self.streaming else bool(ends)
                position += frames.HEADER_SIZE + size
            self._skip = max(0, position - len(data))
            self._rest = data[position:]


async def measure(calls: int, size: int, bursts: int, *, streaming: bool = False) -> float:
    """The least processor time of a call, in seconds."""
    core, stop = Echo(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.run)
        services = edge_services(core)  # type: ignore[arg-type]  # the part of a core that infer calls use
        host, port = await nursery.start(serve_grpc, services, GrpcSettings(host="127.0.0.1", port=0), stop)
        async with await trio.open_tcp_stream(host, port) as stream:
            client = Client(stream, calls, size, streaming)
            await client.greet()
            least = min([await client.burst() for _ in range(bursts)])
        nursery.cancel_scope.cancel()
    return least


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
