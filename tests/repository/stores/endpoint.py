"""A store that answers as it is told: for what no emulator does, such as a wrong region or a connection that breaks."""

from __future__ import annotations

import http.server
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Handler: TypeAlias = Callable[[http.server.BaseHTTPRequestHandler], None]


def answer(status: int, body: str = "", **headers: str) -> Handler:
    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body.encode())

    return handle


def forward(request: http.server.BaseHTTPRequestHandler, url: str, *, limit: int | None = None) -> None:
    """Answer as another store does; or with the first bytes of it only."""
    wanted = ("Range", "If-Match", "Authorization")
    headers = {name: request.headers[name] for name in wanted if name in request.headers}
    try:
        reply = urllib.request.urlopen(urllib.request.Request(url, headers=headers))
    except urllib.error.HTTPError as error:
        reply = error
    with reply:
        body = reply.read()
        request.send_response(reply.status)
        for name in ("Content-Type", "Content-Range", "Last-Modified", "ETag"):
            if value := reply.headers.get(name):
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[:limit])


@contextmanager
def endpoint(handle: Handler, certificate: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its address as `http://host:port`; with a certificate `https://localhost:port`."""

    class Requests(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            handle(self)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    if certificate is not None:
        server.socket = certificate.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http{'s://localhost' if certificate else '://127.0.0.1'}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
