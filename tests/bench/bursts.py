"""Bursts of requests to one server, by a client that costs next to nothing. Beside `load`.

All requests of a burst are in the server's sockets before it reads the first, since it is stopped while they are sent;
the next burst begins when all are answered. So the same requests meet in the same batches each time, whoever else
wants the processor. What is too much for the sockets is sent as the server reads.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Protocol, TypeAlias
from uuid import uuid4

import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import shared_memory

from tests.bench import wrk
from tests.bench.check import LARGE, LEFT, RIGHT, large_inputs, small_inputs
from tests.bench.grpc_bytes import Calls, framed, infer_request
from tests.bench.peers import Server
from tests.bench.rows import Row

# perf_analyzer's calls share a connection up to here.
CALLS_PER_CONNECTION = 6
ANSWER_SECONDS = 120.0
RECEIVE_SIZE = 1 << 20


class Exchange(Protocol):
    """The bytes of one connection."""

    def burst(self) -> bytes:
        """Its part of the next burst."""

    def take(self, data: bytes, /) -> bool:
        """Whether that is answered with what was received. Raises RuntimeError on what is no good answer."""


# What each connection sends at first goes with its exchange.
_Exchanges: TypeAlias = Iterator[tuple[Exchange, bytes]]


@dataclass(slots=True, eq=False)
class OverHttp:
    """One request in a burst, in turn."""

    requests: Iterator[bytes]
    _received: bytearray = field(default_factory=bytearray)
    _size: int = 0  # of the answer, once that is known

    def burst(self) -> bytes:
        self._received.clear()
        self._size = 0
        return next(self.requests)

    def take(self, data: bytes) -> bool:
        if not data:
            raise RuntimeError("the server has closed the connection")
        self._received += data
        if not self._size and (end := self._received.find(b"\r\n\r\n")) > 0:
            head = bytes(self._received[:end]).lower()
            if not head.startswith(b"http/1.1 200 "):
                line = head.partition(b"\r\n")[0].decode(errors="replace")
                raise RuntimeError(f"the server has answered {line}")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            self._size = end + 4 + int(length.partition(b":")[2])
        return bool(self._size) and len(self._received) >= self._size


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    exchange: Exchange
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    is_answered: bool = True

    def begin(self) -> None:
        self.unsent = memoryview(self.exchange.burst())
        self.is_answered = False
        self.send()

    def send(self) -> None:
        with suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def receive(self) -> None:
        with suppress(BlockingIOError):
            while not self.is_answered:
                self.is_answered = self.exchange.take(self.socket.recv(RECEIVE_SIZE))


@dataclass(slots=True, eq=False)
class Bursts:
    """Of one row, over connections that are open."""

    row: Row
    connections: Sequence[_Connection]
    pid: int  # of the server

    def ask(self, times: int) -> None:
        """Send so many bursts, each when the one before is answered. Raises RuntimeError."""
        for _ in range(times):
            with stopped(self.pid):
                for connection in self.connections:
                    connection.begin()
            self._finish()

    def _finish(self) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self.connections:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
                selector.register(connection.socket, events, connection)
            while selector.get_map():
                ready = selector.select(ANSWER_SECONDS)
                if not ready:
                    raise RuntimeError(f"{self.row.label}: no answer within {ANSWER_SECONDS:.0f} s")
                for key, events in ready:
                    connection = key.data
                    if events & selectors.EVENT_WRITE:
                        connection.send()
                        if not connection.unsent:
                            selector.modify(connection.socket, selectors.EVENT_READ, connection)
                    if events & selectors.EVENT_READ:
                        connection.receive()
                        if connection.is_answered:
                            selector.unregister(connection.socket)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def bursts(server: Server, row: Row) -> Iterator[Bursts]:
    """Connect as the row says, once the server runs."""
    assert server.process is not None
    with ExitStack() as stack:
        address = server.address(row.port)
        host, _, port = address.rpartition(":")
        connections = []
        for exchange, greeting in _EXCHANGES[row.protocol](row, server, stack):
            connected = stack.enter_context(socket.create_connection((host, int(port))))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.sendall(greeting)
            connected.setblocking(False)
            connections.append(_Connection(connected, exchange))
        yield Bursts(row, connections, server.process.pid)


def _over_http(row: Row, server: Server, _: ExitStack) -> _Exchanges:
    inputs = {"add_sub": small_inputs, "large": large_inputs}[row.model](tritonclient.http)
    body, length = tritonclient.http.InferenceServerClient.generate_request_body(inputs)
    request = _request(row, server, body, f"Inference-Header-Content-Length: {length}\r\n")
    for _each in range(row.concurrency):
        yield OverHttp(cycle([request])), b""


def _over_json(row: Row, server: Server, _: ExitStack) -> _Exchanges:
    type_line = "Content-Type: application/json\r\n"
    requests = [_request(row, server, wrk.body(seed).encode(), type_line) for seed in range(wrk.BODIES)]
    for first in range(row.concurrency):
        yield OverHttp(cycle(requests[first % wrk.BODIES :] + requests[: first % wrk.BODIES])), b""


def _request(row: Row, server: Server, body: bytes, lines: str) -> bytes:
    head = (
        f"POST /v2/models/{row.model}/infer HTTP/1.1\r\nHost: {server.address('http')}\r\nAccept: */*\r\n"
        f"{lines}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _over_grpc(row: Row, _server: Server, _: ExitStack) -> _Exchanges:
    if row.model == "large":
        message = infer_request("large", {"INPUT": LARGE.shape}, [LARGE.tobytes()])
    else:
        shapes = {"INPUT0": LEFT.shape, "INPUT1": RIGHT.shape}
        message = infer_request("add_sub", shapes, [LEFT.tobytes(), RIGHT.tobytes()])
    if row.protocol == "stream":
        yield _greeted(Calls(message, row.concurrency, streaming=True))
        return
    for first in range(0, row.concurrency, CALLS_PER_CONNECTION):
        yield _greeted(Calls(message, min(CALLS_PER_CONNECTION, row.concurrency - first), streaming=False))


def _through_shared_memory(row: Row, server: Server, stack: ExitStack) -> _Exchanges:
    """A region has the input, and another one for each connection its output."""
    client = stack.enter_context(tritonclient.grpc.InferenceServerClient(server.address("grpc")))
    numbers = count()

    def region() -> str:
        name = f"bench-{uuid4().hex}-{next(numbers)}"
        made = shared_memory.create_shared_memory_region(name, f"/{name}", LARGE.nbytes)
        stack.callback(shared_memory.destroy_shared_memory_region, made)
        shared_memory.set_shared_memory_region(made, [LARGE])
        client.register_system_shared_memory(name, f"/{name}", LARGE.nbytes)
        stack.callback(client.unregister_system_shared_memory, name)
        return name

    source = region()
    for _ in range(row.concurrency):
        request = service_pb2.ModelInferRequest(model_name=row.model)
        tensors = (request.inputs.add(name="INPUT", datatype="FP32", shape=LARGE.shape), source)
        outputs = (request.outputs.add(name="OUTPUT"), region())
        for tensor, name in (tensors, outputs):
            tensor.parameters["shared_memory_region"].string_param = name
            tensor.parameters["shared_memory_byte_size"].int64_param = LARGE.nbytes
        yield _greeted(Calls(framed(request.SerializeToString()), 1, streaming=False))


def _greeted(calls: Calls) -> tuple[Exchange, bytes]:
    return calls, calls.greeting()


_EXCHANGES: dict[str, Callable[[Row, Server, ExitStack], _Exchanges]] = {
    "http": _over_http,
    "json": _over_json,
    "grpc": _over_grpc,
    "stream": _over_grpc,
    "shm": _through_shared_memory,
}
