"""Fuzzed connections to a server over sockets: each ends, and none is answered by a 500 or INTERNAL."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from hpack.exceptions import HPACKError
from hpack.hpack import Decoder

from protocol.http2 import frames
from tests.attack.inputs import (
    Chance,
    grpc_block,
    grpc_framed,
    http1_request,
    http2_connection,
    rest_block,
    rest_body,
)

PATIENCE_SECONDS = 60.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")
_GRPC_DEFECTS = {b"2", b"13", b"15"}  # UNKNOWN, INTERNAL, DATA_LOSS
_LAST = b"GET /v2/health/live HTTP/1.1\r\nhost: fuzz\r\nconnection: close\r\n\r\n"


class Broken(Exception):
    """The server did what it must not, on this connection."""


@dataclass(frozen=True, slots=True)
class Attack:
    """`make` gives what is sent and how many inputs that is, `check` looks at what came back."""

    edge: str
    make: Callable[[Chance], tuple[bytes, int]]
    check: Callable[[bytes], None]


def http1_whole(chance: Chance) -> tuple[bytes, int]:
    count = chance.randrange(1, 10)
    return b"".join(http1_request(chance, nearly=True) for _ in range(count)) + _LAST, count


def http1_broken(chance: Chance) -> tuple[bytes, int]:
    return http1_request(chance, nearly=False) + _LAST, 1


def check_http1(data: bytes) -> None:
    for status in _STATUS.findall(data):
        if status in (b"500", b"502"):
            raise Broken(f"status {status.decode()}")


def check_http2(data: bytes, *, is_grpc: bool) -> None:
    decoder = Decoder()
    position = 0
    while len(data) - position >= frames.HEADER_SIZE:
        size = int.from_bytes(data[position : position + 3], "big")
        kind = data[position + 3]
        payload = data[position + frames.HEADER_SIZE : position + frames.HEADER_SIZE + size]
        position += frames.HEADER_SIZE + size
        if kind == frames.HEADERS:
            try:
                headers = dict(decoder.decode(payload, raw=True))
            except HPACKError as error:  # the fuzz has changed the table's size, and has to live with that
                raise Broken(f"headers that cannot be decoded: {error!r}") from None
            if headers.get(b":status") in (b"500", b"502"):
                raise Broken(repr(headers))
            if is_grpc and headers.get(b"grpc-status") in _GRPC_DEFECTS:
                raise Broken(repr(headers))
        elif kind == frames.GOAWAY and payload[4:8] == b"\0\0\0\2":
            raise Broken("GOAWAY with INTERNAL_ERROR")


def attacks() -> dict[str, Attack]:
    return {
        "http1": Attack("http", http1_whole, check_http1),
        "http1_broken": Attack("http", http1_broken, check_http1),
        "rest_http2": Attack(
            "http",
            lambda chance: (http2_connection(chance, rest_block, rest_body), 6),
            lambda data: check_http2(data, is_grpc=False),
        ),
        "grpc": Attack(
            "grpc",
            lambda chance: (http2_connection(chance, grpc_block, grpc_framed), 6),
            lambda data: check_http2(data, is_grpc=True),
        ),
    }


def attack(address: tuple[str, int], kind: Attack, chance: Chance) -> int:
    """One connection, whole or in pieces; how many inputs it had. Raises Broken, with what was sent."""
    data, count = kind.make(chance)
    pieces = chance.choice((1, 1, 2, 5))
    with socket.create_connection(address, PATIENCE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = b""
        try:
            step = -(-len(data) // pieces)
            for start in range(0, len(data), step):
                connection.sendall(data[start : start + step])
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                answer += more
        except TimeoutError:
            raise Broken(f"the connection does not end: sent {data!r}, got {answer[-2000:]!r}") from None
        except OSError:
            pass  # it was refused while something was on its way
    try:
        kind.check(answer)
    except Broken as error:
        raise Broken(f"{error}: sent {data!r}, got {answer[-2000:]!r}") from None
    return count
