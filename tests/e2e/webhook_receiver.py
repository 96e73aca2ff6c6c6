"""A receiver of webhooks: keeps what comes, and verifies it by the standard's own package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from standardwebhooks import Webhook


@dataclass
class Receiver:
    """Answers by `statuses`, in turn, and then 204."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    received: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def verified(self, path: str, secret: str) -> list[Any]:
        """The messages that came to a path. Raises what the standard's package does."""
        return [Webhook(secret).verify(body, headers) for to, headers, body in self.received if to == path]


@contextmanager
def listening(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append((self.path, headers, body))
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
            self.send_header("Location", "/followed")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        receiver.port = server.server_address[1]
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
