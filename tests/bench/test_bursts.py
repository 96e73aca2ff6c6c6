"""Bursts: what a connection sends, which answers end one, and that a server reads none before all are there."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.bench.bursts import OverHttp, bursts
from tests.bench.grpc_bytes import Calls, infer_request
from tests.bench.peers import HOST, Peer, Server
from tests.bench.rows import ROWS, Row

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"
# Answers as many connections as it is told to, once it has read what each has sent; says which reads it took.
SERVER = f"""
import socket, sys
listener = socket.create_server(("{HOST}", 0), backlog=100)
print(listener.getsockname()[1], flush=True)
connections = [listener.accept()[0] for _ in range(int(sys.argv[1]))]
while True:
    first, *others = connections
    data = first.recv(1 << 20)
    if not data:
        break
    for each in others:
        each.setblocking(False)
        assert each.recv(1 << 20), "a request had not come"
    for each in connections:
        each.setblocking(True)
        each.sendall({ANSWER!r})
"""


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Server]:
    """A server of four connections."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, "4"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    server = Server(Peer("ours", (), {}, "2"), tmp_path / "log", ports=(port, port, port), process=process)
    try:
        yield server
    finally:
        server.stop()
        process.stdout.close()


def test_all_requests_of_a_burst_are_there_before_one_is_read(answering: Server) -> None:
    with bursts(answering, Row("add_sub", "http", 4)) as asking:
        asking.ask(20)
    assert answering.is_running() or answering.end_description() == "ended with exit code 0"


def test_a_server_that_goes_ends_a_burst(answering: Server) -> None:
    with bursts(answering, Row("add_sub", "json", 4)) as asking:
        asking.ask(1)
        assert answering.process is not None
        answering.process.send_signal(signal.SIGKILL)
        answering.process.wait()
        with pytest.raises((RuntimeError, OSError)):
            asking.ask(1)


def test_an_answer_over_http_is_whole_or_refused() -> None:
    exchange = OverHttp(cycle([b"one", b"other"]))
    assert [exchange.burst(), exchange.burst(), exchange.burst()] == [b"one", b"other", b"one"]
    assert [exchange.take(bytes([each])) for each in ANSWER].index(True) == len(ANSWER) - 1
    exchange.burst()
    with pytest.raises(RuntimeError, match=r"http/1\.1 503"):
        exchange.take(ANSWER.replace(b"200 OK", b"503 No"))


def test_calls_share_no_more_connections_than_perf_analyzers() -> None:
    from tests.bench import bursts as module

    server = Server(Peer("ours", (), {}, "2"), Path("log"), ports=(1, 2, 3))
    for row in ROWS:
        if row.protocol in ("grpc", "stream"):
            exchanges = [exchange for exchange, _ in module._EXCHANGES[row.protocol](row, server, None)]  # type: ignore[arg-type]
            assert sum(exchange.calls for exchange in exchanges) == row.concurrency  # type: ignore[attr-defined]
            assert len(exchanges) == (1 if row.protocol == "stream" else -(-row.concurrency // 6))


def test_a_call_that_is_answered_with_an_error_is_no_answer() -> None:
    from protocol.http2 import frames
    from protocol.http2.frames import frame

    calls = Calls(infer_request("add_sub", {"INPUT0": (1, 1)}, [bytes(4)]), 1, streaming=False)
    assert calls.burst()
    answer = frame(frames.HEADERS, frames.END_HEADERS, 1, b"x") + frame(frames.DATA, 0, 1, b"12345")
    end = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, b"x")
    assert not calls.take(answer + end[:3])
    assert calls.take(end[3:])
    calls.burst()
    with pytest.raises(RuntimeError, match="error"):
        calls.take(end.replace(b"\x00\x00\x00\x01", b"\x00\x00\x00\x03"))
    with pytest.raises(RuntimeError, match="closed"):
        calls.take(b"")
