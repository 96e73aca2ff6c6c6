"""What a client of gRPC sends, and how its answers are told apart, as bytes: for clients that cost next to nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpack.hpack import Encoder
from tritonclient.grpc import service_pb2

from protocol.http2 import frames
from protocol.http2.client_settings import pack_settings
from protocol.http2.frames import PREFACE, frame

DATA_FRAME = 1 << 17
WINDOW = 2**31 - 1
# So much of the connection's window is given back in one go.
GIVEN_BACK_FROM = 1 << 24


def infer_request(model: str, inputs: Mapping[str, Sequence[int]], data: Sequence[bytes], own_id: str = "") -> bytes:
    """A message for `model`: FP32 tensors of these shapes and bytes."""
    request = service_pb2.ModelInferRequest(model_name=model, id=own_id)
    for name, shape in inputs.items():
        request.inputs.add(name=name, datatype="FP32", shape=shape)
    request.raw_input_contents.extend(data)
    return framed(request.SerializeToString())


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@dataclass(slots=True, eq=False)
class Calls:
    """One connection: bursts of `calls`, each with this message; with `streaming` all on one stream.

    It waits for no windows: what a burst sends must fit those that the server has open at any time.
    """

    message: bytes
    calls: int
    streaming: bool
    _next_stream: int = 1
    _answered: int = 0
    _with_message: set[int] = field(default_factory=set)  # calls that have got a part of it, and not their end
    _taken: int = 0  # bytes that have come, and whose window is not given back yet
    _first_block: bytes = b""
    _block: bytes = b""
    # Of what was received: the begin of a frame's header, and how many bytes of the last frame are still to come.
    _rest: bytes = b""
    _skip: int = 0

    def __post_init__(self) -> None:
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

    def greeting(self) -> bytes:
        settings = pack_settings({4: WINDOW, 5: 1 << 22})  # type: ignore[dict-item]  # the codes of window and frame
        window = _window_update(WINDOW - 65535)
        data = PREFACE + frame(frames.SETTINGS, 0, 0, settings) + window
        if self.streaming:
            data += frame(frames.HEADERS, frames.END_HEADERS, 1, self._first_block)
        return data

    def burst(self) -> bytes:
        """All of one burst; the one before has been answered."""
        self._answered = 0
        parts: list[bytes] = []
        if self._taken >= GIVEN_BACK_FROM:
            parts.append(_window_update(self._taken))
            self._taken = 0
        for _ in range(self.calls):
            stream = 1 if self.streaming else self._next_stream
            if not self.streaming:
                block = self._first_block if stream == 1 else self._block
                parts.append(frame(frames.HEADERS, frames.END_HEADERS, stream, block))
                self._next_stream += 2
            for start in range(0, len(self.message), DATA_FRAME):
                is_last = not self.streaming and start + DATA_FRAME >= len(self.message)
                payload = self.message[start : start + DATA_FRAME]
                parts.append(frame(frames.DATA, frames.END_STREAM if is_last else 0, stream, payload))
        return b"".join(parts)

    def take(self, data: bytes) -> bool:
        """Whether the whole burst is answered with what was received: a message for each call on a stream, else its
        trailers. Raises RuntimeError where the server refuses a call,
        or closes the connection."""
        if not data:
            raise RuntimeError("the server has closed the connection")
        data = self._rest + data
        position = self._skip
        while len(data) - position >= frames.HEADER_SIZE:
            size = int.from_bytes(data[position : position + 3], "big")
            kind, flags = data[position + 3], data[position + 4]
            stream = int.from_bytes(data[position + 5 : position + 9], "big")
            if kind == frames.DATA:
                self._taken += size
                self._with_message.add(stream)
                self._answered += self.streaming
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                raise RuntimeError("the server has refused a call")
            elif kind == frames.HEADERS and flags & frames.END_STREAM:
                if stream not in self._with_message:
                    raise RuntimeError("the server has answered a call with an error")
                self._with_message.discard(stream)
                self._answered += 1
            position += frames.HEADER_SIZE + size
        self._skip = max(0, position - len(data))
        self._rest = data[position:]
        return self._answered >= self.calls and not self._skip


def _window_update(size: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, 0, size.to_bytes(4, "big"))
