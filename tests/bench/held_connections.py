"""Many connections to a server at once, as plain sockets: each is opened, may send one request, and then sits idle.

All connections of a kind send the same bytes, which are made once: by `h2` for HTTP/2 and gRPC, whose state on the
client's side is the same on each.
"""

from __future__ import annotations

import resource
import selectors
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from tritonclient.grpc import service_pb2

MODEL = "add_sub"
ELEMENTS = 16
# A port of one address has 28,000 ports for its clients, and each of these addresses is loopback.
ADDRESSES = tuple(f"127.0.0.{number}" for number in range(2, 12))
SECONDS = 120.0
AT_ONCE = 64  # connections that are opened at a time: a server's queue of them is bounded

# HEADERS with END_STREAM and END_HEADERS on stream 1: the end of a call.
TRAILERS = b"\x01\x05\x00\x00\x00\x01"


@dataclass(frozen=True, slots=True)
class Kind:
    """What each connection sends, and a text that ends the answers to it."""

    name: str
    port: str  # of the server: http, or grpc
    request: bytes
    end: bytes
    acknowledgement: bytes = b""  # sent when the answer is there
    protocol: str = ""  # of ALPN


def kinds() -> list[Kind]:
    settings = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"  # acknowledges those of the server
    return [
        Kind("HTTP/1", "http", http1_request(), b"]}]}", protocol="http/1.1"),
        Kind("HTTP/2", "http", http2_request(_rest_headers(), _json()), b"]}]}", settings, "h2"),
        Kind("gRPC", "grpc", http2_request(grpc_headers("ModelInfer"), _message()), TRAILERS, settings, "h2"),
    ]


def _json() -> bytes:
    values = ",".join("1" for _ in range(ELEMENTS))
    tensor = f'"datatype":"FP32","shape":[1,{ELEMENTS}],"data":[{values}]'
    tensors = ",".join(f'{{"name":"{name}",{tensor}}}' for name in ("INPUT0", "INPUT1"))
    return f'{{"inputs":[{tensors}]}}'.encode()


def http1_request() -> bytes:
    body = _json()
    return b"POST /v2/models/%b/infer HTTP/1.1\r\nhost: server\r\ncontent-length: %d\r\n\r\n%b" % (
        MODEL.encode(),
        len(body),
        body,
    )


def _rest_headers() -> list[tuple[str, str]]:
    path = f"/v2/models/{MODEL}/infer"
    return [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "server")]


def grpc_headers(method: str) -> list[tuple[str, str]]:
    path = f"/inference.GRPCInferenceService/{method}"
    headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "server")]
    return [*headers, ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "bench")]


def _message() -> bytes:
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [1, ELEMENTS], "contents": {"fp32_contents": [1.0] * ELEMENTS}}
        for name in ("INPUT0", "INPUT1")
    ]
    return grpc_message(service_pb2.ModelInferRequest(model_name=MODEL, inputs=tensors))


def grpc_message(request: service_pb2.ModelInferRequest) -> bytes:
    message = request.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + bytes(message)


def http2_request(headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """All that a client sends from the beginning of a connection to the end of its first request."""
    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    connection.send_headers(1, headers)
    connection.send_data(1, body, end_stream=True)
    return bytes(connection.data_to_send())


def client_context(certificate: Path, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    context.set_alpn_protocols([protocol])
    return context


def allow_descriptors() -> int:
    """As many as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


@contextmanager
def held(count: int, port: int, kind: Kind, *, asks: bool, context: ssl.SSLContext | None = None) -> Iterator[None]:
    """Have so many connections open, each of which has had its answer if it `asks`.

    Raises OSError where the server takes or answers one of them not.
    """
    sockets: list[socket.socket] = []
    try:
        for start in range(0, count, AT_ONCE):
            several = [_opened(port, number, context) for number in range(start, min(start + AT_ONCE, count))]
            sockets += several
            if asks:
                _exchange(several, kind)
        yield
        for one in sockets:
            one.setblocking(False)
            try:
                data = one.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            if not data:
                raise ConnectionError("the server has closed a connection that was idle")
    finally:
        for one in sockets:
            one.close()


def _opened(port: int, number: int, context: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection(
        ("127.0.0.1", port), timeout=SECONDS, source_address=(ADDRESSES[number % len(ADDRESSES)], 0)
    )
    return plain if context is None else context.wrap_socket(plain)


def _exchange(sockets: Sequence[socket.socket], kind: Kind) -> None:
    """Send the request on all of them, and wait for all answers."""
    for one in sockets:
        one.sendall(kind.request)
    received = dict.fromkeys(sockets, b"")
    end = time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        while received:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(received)} connections have no answer")
            for key, _ in selector.select(1):
                asked = key.fileobj
                assert isinstance(asked, socket.socket)
                data = asked.recv(65536)
                received[asked] += data
                if not data:
                    raise ConnectionError(f"the server has closed a connection: {received[asked]!r}")
                if kind.end in received[asked]:
                    selector.unregister(asked)
                    del received[asked]
                    if kind.acknowledgement:
                        asked.sendall(kind.acknowledgement)
