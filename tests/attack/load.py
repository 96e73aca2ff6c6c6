"""A load whose every answer is checked: HTTP/1 and gRPC connections that send a request when one is answered.

One thread and one selector for all connections of a process, and requests whose bytes are made once, so that the server
and not this is what is loaded.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from hpack.hpack import Decoder, Encoder

from protocol.http2 import frames
from protocol.http2.client_settings import pack_settings
from protocol.http2.frames import PREFACE, frame
from tests.attack.sums import Sum, make_sums

SILENT_SECONDS = 60.0
# Of one connection; then it is closed and a new one made.
MOST_REQUESTS = 20_000
_WINDOW = 2**31 - 1
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")
_CLOSES = re.compile(rb"(?i)\r\nconnection: *close\r\n")


@dataclass(slots=True)
class Tally:
    """What became of the requests. `refused` are answers that the model is not there now; `wrong` must not be."""

    right: int = 0
    refused: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def all(self) -> int:
        return self.right + self.refused + self.lost + len(self.wrong)

    def note_wrong(self, what: str) -> None:
        if len(self.wrong) < 100:
            self.wrong.append(what)


class Http1Connection:
    """One request at a time. Some are sent in two pieces, as many clients do."""

    def __init__(self, address: tuple[str, int], model: str, sums: Sequence[Sum], chance: random.Random) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._model = model
        self._sums = sums
        self._chance = chance
        self._data = b""
        self._asked: Sum | None = None
        self.in_flight = 0
        self.is_over = False
        self._served = 0

    def send(self) -> int:
        """Send what may be sent now; how many requests that is."""
        if self._asked is not None or self.is_over:
            return 0
        self._asked = asked = self._chance.choice(self._sums)
        head = (
            f"POST /v2/models/{self._model}/infer HTTP/1.1\r\nhost: soak\r\n"
            f"inference-header-content-length: {asked.header_length}\r\ncontent-length: {len(asked.http)}\r\n\r\n"
        ).encode()
        if self._chance.random() < 0.1:
            self.socket.sendall(head)
            self.socket.sendall(asked.http)
        else:
            self.socket.sendall(head + asked.http)
        self.in_flight = 1
        return 1

    def receive(self, tally: Tally) -> bool:
        """Take what has come; whether the connection goes on."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            tally.lost += self.in_flight
            return False
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return True
        found = _LENGTH.search(self._data, 0, end + 2)
        if found is None:
            tally.note_wrong(f"no length: {self._data[:300]!r}")
            return False
        size = end + 4 + int(found.group(1))
        if len(self._data) < size:
            return True
        answer, self._data = self._data, b""
        asked, self._asked = self._asked, None
        assert asked is not None
        self.in_flight = 0
        self._served += 1
        if len(answer) > size:
            tally.note_wrong(f"more than an answer: {answer[:300]!r}")
            return False
        if answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"".join(asked.outputs)):
            tally.right += 1
        elif answer.startswith((b"HTTP/1.1 503 ", b"HTTP/1.1 404 ", b"HTTP/1.1 400 Bad Request")) and _is_away(answer):
            tally.refused += 1
        else:
            tally.note_wrong(repr(answer[:500]))
        return not _CLOSES.search(answer, 0, end + 2) and self._served < MOST_REQUESTS

    def close(self) -> None:
        self.socket.close()


class GrpcConnection:
    """Up to `most` calls at once, each a stream."""

    def __init__(
        self, address: tuple[str, int], model: str, sums: Sequence[Sum], chance: random.Random, most: int = 8
    ) -> None:
        del model
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sums = sums
        self._chance = chance
        self._most = most
        self._calls: dict[int, tuple[Sum, list[bytes]]] = {}
        self._next = 1
        self._data = b""
        encoder = Encoder()
        encoder.header_table_size = 0
        self._block = encoder.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/inference.GRPCInferenceService/ModelInfer"),
                (":authority", "soak"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            ]
        )
        # With a table of size 0 each block stands for itself.
        settings = pack_settings({1: 0, 4: _WINDOW, 5: 1 << 20})  # type: ignore[dict-item]  # the settings' numbers
        window = frame(frames.WINDOW_UPDATE, 0, 0, (_WINDOW - 65535).to_bytes(4, "big"))
        self.socket.sendall(PREFACE + frame(frames.SETTINGS, 0, 0, settings) + window)
        self._is_leaving = False

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    @property
    def is_over(self) -> bool:
        return self._is_leaving and not self._calls

    def send(self) -> int:
        parts: list[bytes] = []
        count = 0
        while len(self._calls) < self._most and not self._is_leaving:
            asked = self._chance.choice(self._sums)
            message = b"\0" + len(asked.message).to_bytes(4, "big") + asked.message
            parts.append(frame(frames.HEADERS, frames.END_HEADERS, self._next, self._block))
            parts.append(frame(frames.DATA, frames.END_STREAM, self._next, message))
            self._calls[self._next] = asked, []
            self._next += 2
            count += 1
            self._is_leaving = self._next > MOST_REQUESTS * 2
        if parts:
            self.socket.sendall(b"".join(parts))
        return count

    def receive(self, tally: Tally) -> bool:
        try:
            data = self.socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            tally.lost += len(self._calls)
            return False
        data = self._data + data
        position = 0
        while len(data) - position >= frames.HEADER_SIZE:
            size = int.from_bytes(data[position : position + 3], "big")
            end = position + frames.HEADER_SIZE + size
            if len(data) < end:
                break
            kind, flags = data[position + 3], data[position + 4]
            stream = int.from_bytes(data[position + 5 : position + 9], "big")
            self._take(kind, flags, stream, data[position + frames.HEADER_SIZE : end], tally)
            position = end
        self._data = data[position:]
        return True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, tally: Tally) -> None:
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self.socket.sendall(frame(frames.SETTINGS, frames.ACK, 0, b""))
        elif kind == frames.PING and not flags & frames.ACK:
            self.socket.sendall(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY:
            self._is_leaving = True
        elif kind == frames.RST_STREAM:
            if self._calls.pop(stream, None) is not None:
                tally.note_wrong(f"RST_STREAM {payload!r}")
        elif kind == frames.DATA and stream in self._calls:
            self._calls[stream][1].append(payload)
        elif kind == frames.HEADERS and flags & frames.END_STREAM:
            asked, parts = self._calls.pop(stream)
            answer = b"".join(parts)
            if answer:
                first, second = (answer.find(output) for output in asked.outputs)
                if 0 < first < second:
                    tally.right += 1
                else:
                    tally.note_wrong(repr(answer[:500]))
                return
            trailers = dict(Decoder().decode(payload, raw=True))
            if trailers.get(b"grpc-status") in (b"14", b"5", b"3") and _is_away(repr(trailers).encode()):
                tally.refused += 1
            else:
                tally.note_wrong(repr(trailers))

    def close(self) -> None:
        self.socket.close()


def _is_away(answer: bytes) -> bool:
    """What a server says while a model is killed, unloaded or loaded anew."""
    return b"wrong" not in answer


KINDS = {"http1": Http1Connection, "grpc": GrpcConnection}


def run(
    kind: str, address: tuple[str, int], model: str, *, requests: int, connections: int, seed: int, seconds: float
) -> Tally:
    """Send `requests` over `connections`, or as many as fit into the time, and check every answer."""
    chance = random.Random(seed)
    sums = make_sums(model, seed)
    tally = Tally()
    selector = selectors.DefaultSelector()
    open_now: set[Http1Connection | GrpcConnection] = set()
    sent = 0
    end = time.monotonic() + seconds
    heard = time.monotonic()
    while True:
        is_over = sent >= requests or time.monotonic() > end
        while not is_over and len(open_now) < connections:
            connection = KINDS[kind](address, model, sums, chance)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            open_now.add(connection)
            sent += connection.send()
        if is_over and not any(each.in_flight for each in open_now):
            break
        events = selector.select(1.0)
        for key, _ in events:
            connection = key.data
            goes_on = connection.receive(tally)
            if goes_on and not is_over:
                sent += connection.send()
            if not goes_on or connection.is_over:
                selector.unregister(connection.socket)
                open_now.remove(connection)
                connection.close()
        if events:
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENT_SECONDS:
            tally.lost += sum(each.in_flight for each in open_now)
            tally.note_wrong(f"nothing came for {SILENT_SECONDS} s")
            break
    for connection in open_now:
        connection.close()
    selector.close()
    return tally


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    host, _, port = given.address.rpartition(":")
    tally = run(
        given.kind,
        (host, int(port)),
        given.model,
        requests=given.requests,
        connections=given.connections,
        seed=given.seed,
        seconds=given.seconds,
    )
    json.dump(asdict(tally), sys.stdout)


if __name__ == "__main__":
    main()
