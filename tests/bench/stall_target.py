"""The server that causes of `stalls` provoke, and one request to it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import TypeAlias

from tests.bench.peers import HOST

MEGABYTE = 1 << 20
WAIT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is provoked, and how many models it has beside those that causes use."""

    ports: tuple[int, int, int]
    models: Path
    count: int

    def http(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, port: int = 0
    ) -> int:
        """Send and read all; returns the status. The answer is thrown away as it comes, which costs next to nothing."""
        lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        with socket.create_connection((HOST, port or self.ports[0]), WAIT_SECONDS) as connection:
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            head = connection.recv(65536)
            room = bytearray(MEGABYTE)
            while connection.recv_into(room):
                pass
        return int(head[9:12])

    def connection(self) -> AbstractContextManager[HTTPConnection]:
        return closing(HTTPConnection(HOST, self.ports[0], timeout=WAIT_SECONDS))

    def post(self, path: str, body: bytes, expected: int = 200, headers: dict[str, str] | None = None) -> None:
        status = self.http("POST", path, body, headers)
        assert status == expected, f"{path}: {status}"

    def get(self, path: str, port: int = 0) -> None:
        status = self.http("GET", path, headers={"accept-encoding": "gzip"}, port=port)
        assert status == 200, f"{path}: {status}"


Cause: TypeAlias = Callable[[Target], None]
