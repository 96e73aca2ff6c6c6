"""Clients that send as fast as Python can, and know how each single request ended: HTTP/1, and REST and gRPC over
HTTP/2, by sockets."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable

from hpack import Decoder, Encoder, NeverIndexedHeaderTuple

from tests.e2e.server_process import TIMEOUT_SECONDS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
REFUSED_STREAM = 7
# Requests under way on an HTTP/2 connection.
STREAMS = 8
_WIDE = 2**31 - 1 - 65535
# A client opens another connection after so many requests, so that some are always new.
_PER_CONNECTION = 400


class CountingClient(threading.Thread):
    """Asks until no connection can be opened any more.

    Attributes:
        outcomes: of each request. A status; or "not processed", where the server has said so, or has taken nothing of
            a connection that is new; or "lost".
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self.outcomes: Counter[str] = Counter()
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            while True:
                try:
                    connection = socket.create_connection(self._address, TIMEOUT_SECONDS)
                except ConnectionError:
                    return
                with connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.use(connection)
        except Exception as error:
            self.problem = error

    def use(self, connection: socket.socket) -> None:
        """Send requests until one side ends the connection, and count each."""
        raise NotImplementedError


class Http1Client(CountingClient):
    """One request at a time."""

    def __init__(self, address: str, path: str, body: bytes) -> None:
        super().__init__(address)
        head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def use(self, connection: socket.socket) -> None:
        for number in range(_PER_CONNECTION):
            try:
                connection.sendall(self._request)
                head, found = b"", b""
                while not head:
                    received = connection.recv(65536)
                    if not received:
                        break
                    found += received
                    head, _, body = found.rpartition(b"\r\n\r\n") if found.count(b"\r\n\r\n") == 1 else (b"", b"", b"")
                if not head:
                    raise ConnectionResetError
            except ConnectionError:
                self.outcomes["lost" if number or found else "not processed"] += 1
                return
            lines = head.lower().split(b"\r\n")
            size = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
            while len(body) < size:
                received = connection.recv(65536)
                if not received:
                    self.outcomes["lost"] += 1
                    return
                body += received
            self.outcomes[head[9:12].decode()] += 1
            if b"connection: close" in lines:
                return


class Http2Client(CountingClient):
    """Several requests at a time. With gRPC's framing and trailers where `is_grpc`."""

    def __init__(self, address: str, path: str, body: bytes, *, is_grpc: bool = False) -> None:
        super().__init__(address)
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", address), (":path", path)]
        if is_grpc:
            fields += [("te", "trailers"), ("content-type", "application/grpc")]
        else:
            fields += [("content-length", str(len(body)))]
        # Never indexed: the block means the same each time that it is sent.
        self._head = Encoder().encode([NeverIndexedHeaderTuple(*field) for field in fields], huffman=False)
        self._body = body
        self._status = "grpc-status" if is_grpc else ":status"

    def use(self, connection: socket.socket) -> None:
        decoder = Decoder()
        open_streams: dict[int, str] = {}  # with the status, once it is known
        received = bytearray()
        next_stream, last_taken = 1, -1  # what GOAWAY says
        was_greeted = False
        try:
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, _WIDE.to_bytes(4, "big")))
            while open_streams or (last_taken < 0 and next_stream < 2 * _PER_CONNECTION):
                requests = b""
                while last_taken < 0 and len(open_streams) < STREAMS and next_stream < 2 * _PER_CONNECTION:
                    open_streams[next_stream] = ""
                    requests += frame(HEADERS, END_HEADERS, next_stream, self._head)
                    requests += frame(DATA, END_STREAM, next_stream, self._body)
                    next_stream += 2
                if requests:
                    connection.sendall(requests)
                data = connection.recv(65536)
                if not data:
                    break
                received += data
                while (found := _next_frame(received)) is not None:
                    kind, flags, stream, payload = found
                    was_greeted = True
                    if kind == HEADERS:
                        fields = {str(name): str(value) for name, value in decoder.decode(payload)}
                        open_streams[stream] = fields.get(self._status, open_streams[stream])
                    elif kind == RST_STREAM:
                        is_refused = int.from_bytes(payload, "big") == REFUSED_STREAM
                        self.outcomes["not processed" if is_refused else "reset"] += 1
                        open_streams.pop(stream, None)
                    elif kind == GOAWAY:
                        last_taken = int.from_bytes(payload[:4], "big")
                    elif kind in (SETTINGS, PING) and not flags & ACK:
                        connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
                    if kind in (HEADERS, DATA) and flags & END_STREAM:
                        self.outcomes[open_streams.pop(stream)] += 1
        except ConnectionError:
            pass
        for stream in open_streams:
            was_refused = not was_greeted or 0 <= last_taken < stream
            self.outcomes["not processed" if was_refused else "lost"] += 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _next_frame(received: bytearray) -> tuple[int, int, int, bytes] | None:
    """Takes it out of what has been received."""
    if len(received) < 9:
        return None
    end = 9 + int.from_bytes(received[:3], "big")
    if len(received) < end:
        return None
    kind, flags, stream = received[3], received[4], int.from_bytes(received[5:9], "big")
    payload = bytes(received[9:end])
    del received[:end]
    return kind, flags, stream, payload


def total(clients: list[CountingClient], counts: Callable[[str], bool] = lambda outcome: True) -> int:
    """Requests of all clients whose outcome counts. While they run, approximately."""
    return sum(number for client in clients for outcome, number in [*client.outcomes.items()] if counts(outcome))
