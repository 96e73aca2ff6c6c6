"""Many open streams that answer once in a second each: `python -m tests.bench.open_streams`.

A decoupled `model.py`, one coroutine for each request, answers so many times, a second apart, over `generate_stream`
or gRPC's `ModelStreamInfer`. Each stream has a connection of its own; what came is counted by stream, and none may be
lost.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tritonclient.grpc import service_pb2

from tests.bench.held_connections import (
    ADDRESSES,
    TRAILERS,
    allow_descriptors,
    grpc_headers,
    grpc_message,
    http2_request,
)
from tests.bench.memory import tree_memory
from tests.bench.peers import HOST, PeerError, Server, our_server
from tests.bench.processor import tree_times

MODEL = """import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            for number in range(count):
                await asyncio.sleep(1)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """backend: "python"
input { name: "COUNT" data_type: TYPE_INT32 dims: 1 }
output { name: "NUMBER" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
parameters { key: "MAX_CONCURRENT_EXECUTE" value { string_value: "%d" } }
"""
SECONDS_MORE = 60.0  # than the answers take


def add_model(folder: Path, streams: int) -> None:
    (folder / "ticks" / "1").mkdir(parents=True)
    (folder / "ticks" / "1" / "model.py").write_text(MODEL)
    (folder / "ticks" / "config.pbtxt").write_text(CONFIG % streams)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a stream sends to have so many answers, a text that each answer has once, and one that ends the last; empty
    where the connection's end does."""

    port: int  # which of the server's
    request: Callable[[int], bytes]
    answer: bytes
    end: bytes = b""


def _http_request(count: int) -> bytes:
    body = b'{"COUNT": %d}' % count
    head = b"POST /v2/models/ticks/generate_stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def _grpc_request(count: int) -> bytes:
    tensor = {"name": "COUNT", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [count]}}
    message = grpc_message(service_pb2.ModelInferRequest(model_name="ticks", inputs=[tensor]))
    return http2_request(grpc_headers("ModelStreamInfer"), message)


KINDS = {
    "http": Kind(0, _http_request, b"data: "),
    "grpc": Kind(1, _grpc_request, b"NUMBER", TRAILERS),
}


def answers(kind: Kind, port: int, streams: int, count: int) -> list[int]:
    """How many answers each stream had until all have ended, or the time is up."""
    request = kind.request(count)
    received = [b""] * streams
    sockets: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        try:
            for number in range(streams):
                source = (ADDRESSES[number % len(ADDRESSES)], 0)
                one = socket.create_connection((HOST, port), timeout=60, source_address=source)
                sockets.append(one)
                one.sendall(request)
                selector.register(one, selectors.EVENT_READ, number)
            left, end = streams, time.monotonic() + count + SECONDS_MORE
            while left and time.monotonic() < end:
                for key, _ in selector.select(1):
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(65536)
                    received[key.data] += data
                    if not data or (kind.end and kind.end in received[key.data]):
                        selector.unregister(key.fileobj)
                        left -= 1
        finally:
            for one in sockets:
                one.close()
    return [each.count(kind.answer) for each in received]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.open_streams", description="Measure open streams.")
    parser.add_argument("--streams", type=int, default=10_000, help="how many (default %(default)s)")
    parser.add_argument("--answers", type=int, default=30, help="of each, a second apart (default %(default)s)")
    parser.add_argument("--protocol", choices=KINDS, default="http", help="of the streams (default %(default)s)")
    options = parser.parse_args(arguments)
    kind = KINDS[options.protocol]
    if allow_descriptors() < options.streams + 200:
        sys.exit(f"error: {options.streams} streams need as many descriptors: raise ulimit -n")
    with TemporaryDirectory() as name:
        folder = Path(name) / "models"
        add_model(folder, options.streams)
        peer = our_server()
        limits = [f"--{edge}-max-connections={options.streams + 100}" for edge in ("http", "grpc")]
        peer = replace(peer, command=(*peer.command, *limits), models=folder)
        server = Server(peer, Path(name) / "log")
        try:
            server.start()
            assert server.process is not None
            before, began = tree_times(server.process.pid), time.monotonic()
            found = answers(kind, server.ports[kind.port], options.streams, options.answers)
            took, used = time.monotonic() - began, tree_times(server.process.pid) - before
            memory = tree_memory(server.process.pid).proportional
        except (PeerError, OSError) as error:
            sys.exit(f"error: {error}")
        finally:
            server.stop()
    lost = options.streams * options.answers - sum(found)
    print(f"{options.streams:,} streams of {options.answers} answers in {took:.1f} s: {lost:,} lost")
    print(f"processor: server {used.user + used.system:.1f} s, worker {used.workers:.1f} s; {memory / 2**20:.0f} MiB")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
