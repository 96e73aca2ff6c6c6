"""Causes of `stalls` that are many of one thing at once: connections, calls that are given up, changes of settings."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import h2.config
import h2.connection
from tritonclient import grpc as triton_grpc

from tests.bench.peers import HOST
from tests.bench.stall_target import MEGABYTE, WAIT_SECONDS, Cause, Target

LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
CONNECTIONS = 10_000
# As many as a connection may have at once, and may be given up in a second.
CALLS = 950
CALLING = 5  # connections of gRPC
REGION_BYTES = 1 << 30


def _connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), WAIT_SECONDS)


@contextmanager
def _connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Closed at the end, all at once."""
    opened: list[socket.socket] = []
    try:
        opened += (_connected(port) for _ in range(count))
        yield opened
    finally:
        for each in opened:
            each.close()


def opening(target: Target) -> None:
    """10,000 connections are opened, and closed at once: ten times as many as may be open."""
    for _ in range(CONNECTIONS // 1000):
        with _connections(target.ports[0], 1000):
            pass


def closing(target: Target) -> None:
    """1000 connections that have asked something are closed at once."""
    with _connections(target.ports[0], 1000) as opened:
        for each in opened:
            each.sendall(LIVE)
        for each in opened:
            each.recv(4096)


def closing_grpc(target: Target) -> None:
    """As `closing`, over gRPC: each has had one answer."""
    calls = _calls(1, "large")
    with _connections(target.ports[1], CALLS) as opened:
        for each in opened:
            each.sendall(calls)
        time.sleep(1)


def closing_tls(target: Target) -> None:
    """As many that have shaken hands by TLS are closed at once."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with ExitStack() as opened:
        for _ in range(CALLS):
            opened.enter_context(context.wrap_socket(_connected(target.ports[1])))
        time.sleep(1)


def cancellations(target: Target) -> None:
    """The clients of 950 requests of HTTP leave at once, and those of 4750 calls on five connections of gRPC."""
    body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}'
    head = b"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    calls = _calls(CALLS, "slow")
    with _connections(target.ports[0], CALLS) as asking, _connections(target.ports[1], CALLING) as calling:
        for each in asking:
            each.sendall(head + body)
        for each in calling:
            each.sendall(calls)
        time.sleep(1)


def resets(target: Target) -> None:
    """950 calls each on five connections of gRPC are begun and given up at once."""
    calls = _calls(CALLS, "slow", are_reset=True)
    with _connections(target.ports[1], CALLING) as calling:
        for each in calling:
            each.sendall(calls)
        time.sleep(1)


def late_resets(target: Target) -> None:
    """As `resets`, once all of them have been begun."""
    calls = _calls(CALLS, "slow")
    frames = b"".join(struct.pack("!HBBBII", 0, 4, 3, 0, 1 + 2 * number, 8) for number in range(CALLS))
    with _connections(target.ports[1], CALLING) as calling:
        for each in calling:
            each.sendall(calls)
        time.sleep(1)
        for each in calling:
            each.sendall(frames)
        time.sleep(0.5)


def _calls(count: int, model: str, *, are_reset: bool = False) -> bytes:
    """What a client sends that calls `ModelInfer` so often on one connection."""
    request = triton_grpc.service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4)])
    request.inputs.add(name="IN", datatype="FP32", shape=[1])
    message = request.SerializeToString()
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
    client.initiate_connection()
    # What the server will allow in its settings, which nobody reads here.
    client.remote_settings.max_concurrent_streams = count + 1
    client.outbound_flow_control_window = MEGABYTE
    names = ((":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelInfer"))
    headers = [*names, (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")]
    for _ in range(count):
        stream = client.get_next_available_stream_id()
        client.send_headers(stream, headers)
        client.send_data(stream, struct.pack("!BI", 0, len(message)) + message, end_stream=True)
        if are_reset:
            client.reset_stream(stream, 8)
    return client.data_to_send()


def grpc_statistics(target: Target) -> None:
    with triton_grpc.InferenceServerClient(f"{HOST}:{target.ports[1]}") as client:
        client.get_inference_statistics()


def grpc_index(target: Target) -> None:
    with triton_grpc.InferenceServerClient(f"{HOST}:{target.ports[1]}") as client:
        client.get_model_repository_index()


def trace_settings(target: Target) -> None:
    """Changed 200 times."""
    for number in range(200):
        target.post("/v2/trace/setting", json.dumps({"trace_rate": str(1000 + number % 2)}).encode())


def log_settings(target: Target) -> None:
    """Changed 200 times."""
    for number in range(200):
        target.post("/v2/logging", json.dumps({"log_verbose_level": number % 2}).encode())


def shared_memory(target: Target) -> None:
    """A region of a gigabyte is registered and unregistered."""
    file = Path("/dev/shm") / f"trioton-stalls-{os.getpid()}"
    with file.open("wb") as region:
        region.truncate(REGION_BYTES)
    try:
        body = json.dumps({"key": f"/{file.name}", "offset": 0, "byte_size": REGION_BYTES}).encode()
        target.post("/v2/systemsharedmemory/region/large/register", body)
        target.post("/v2/systemsharedmemory/region/large/unregister", b"{}")
    finally:
        file.unlink()


STORMS: dict[str, Cause] = {
    each.__name__: each
    for each in (
        opening,
        closing,
        closing_grpc,
        closing_tls,
        cancellations,
        resets,
        late_resets,
        grpc_statistics,
        grpc_index,
        trace_settings,
        log_settings,
        shared_memory,
    )
}
