"""A load of streamed answers over plain sockets: `python -m tests.bench.language.streams`, a process of its own.

So many streams run beside each other, each on a connection of its own that asks again when an answer has ended. Nothing
is parsed but the ends of events, so that the load costs little beside the server. What is measured is printed as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

EVENT = b"\n\n"
# The last chunk of an answer in chunked transfer coding (RFC 9112, section 7.1).
END = b"0\r\n\r\n"
LIMIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """What to ask, and how often. The first event that has `mark` is the first token's."""

    host: str
    port: int
    path: str
    body: bytes
    streams: int
    answers: int  # of each stream
    mark: bytes

    @property
    def request(self) -> bytes:
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came: over all streams, and times in seconds."""

    answers: int
    events: int
    seconds: float
    first_token: list[float]
    between_events: list[float]


class StreamFailed(Exception):
    """An answer was not a whole stream; the message is its beginning."""


class _Stream:
    """One connection."""

    def __init__(self, load: Load) -> None:
        self.socket = socket.create_connection((load.host, load.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._load = load
        self._request = load.request
        self._data = b""
        self._has_head = self._has_token = False
        self._asked = self._last = 0.0
        self.left = load.answers
        self.events = 0
        self.first_token: list[float] = []
        self.between: list[float] = []

    def ask(self) -> None:
        self._data, self._has_head, self._has_token = b"", False, False
        self._asked = time.perf_counter()
        self.socket.sendall(self._request)

    def receive(self) -> bool:
        """Returns whether the last answer has ended. Raises StreamFailed."""
        data = self.socket.recv(1 << 18)
        now = time.perf_counter()
        if not data:
            raise StreamFailed(f"the connection ended inside an answer: {self._data[:300]!r}")
        if not self._has_head and not self._take_head(data):
            return False
        # What a mark or an end may begin with stays for the next piece.
        self._data = self._data[-64:] + data
        count = data.count(EVENT)
        if count:
            self._take_events(now, count)
        if not self._data.endswith(END):
            return False
        self.left -= 1
        if self.left:
            self.ask()
        return not self.left

    def _take_head(self, data: bytes) -> bool:
        self._data += data
        head, end, _ = self._data.partition(b"\r\n\r\n")
        if not end:
            return False
        if b" 200 " not in head[:20]:
            raise StreamFailed(repr(self._data[:600]))
        self._has_head = True
        return True

    def _take_events(self, now: float, count: int) -> None:
        self.events += count
        if self._has_token:
            self.between.append(now - self._last)
        elif self._load.mark in self._data:
            self._has_token = True
            self.first_token.append(now - self._asked)
        self._last = now


def run(load: Load) -> Streamed:
    """All answers of all streams, which begin at once. Raises StreamFailed, OSError."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        streams: list[_Stream] = []
        for _ in range(load.streams):
            stream = _Stream(load)
            stack.callback(stream.socket.close)
            selector.register(stream.socket, selectors.EVENT_READ, stream)
            streams.append(stream)
        began = time.perf_counter()
        for stream in streams:
            stream.ask()
        going = len(streams)
        while going:
            ready = selector.select(LIMIT_SECONDS)
            if not ready:
                raise StreamFailed(f"nothing came for {LIMIT_SECONDS:.0f} s")
            for key, _ in ready:
                if key.data.receive():
                    going -= 1
        seconds = time.perf_counter() - began
    return Streamed(
        load.streams * load.answers,
        sum(each.events for each in streams),
        seconds,
        [value for each in streams for value in each.first_token],
        [value for each in streams for value in each.between],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.language.streams", description=__doc__)
    parser.add_argument("--address", required=True, help="host:port")
    parser.add_argument("--path", required=True)
    parser.add_argument("--body", required=True, type=Path, help="a file")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--answers", type=int, default=1, help="of each stream")
    parser.add_argument("--mark", default="data: ", help="text that an event with a token has")
    options = parser.parse_args(arguments)
    host, _, port = options.address.rpartition(":")
    load = Load(
        host,
        int(port),
        options.path,
        options.body.read_bytes(),
        options.streams,
        options.answers,
        options.mark.encode(),
    )
    try:
        print(json.dumps(asdict(run(load))))
    except (StreamFailed, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
