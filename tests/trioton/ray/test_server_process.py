"""A server's process as a replica holds it, with small programs in place of a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trioton.fleet.listening import free_address
from trioton.ray.server_process import ServerFailed, ServerProcess

PRELUDE = """
import http.server, signal, sys, time
port = int(sys.argv[1])
ready = time.monotonic() + float(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.monotonic() > ready else 400)
        self.end_headers()
        self.wfile.write(self.path.encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(403)
        self.end_headers()
        self.wfile.write(body + self.headers.get("authorization", "").encode())
    def log_message(self, *args):
        pass
"""
SERVE = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("it begins", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@contextmanager
def running(program: str, ready_after: float = 0.0) -> Iterator[ServerProcess]:
    address = free_address("127.0.0.1", 0, 0, 0)
    command = [sys.executable, "-c", PRELUDE + program, str(address.http_port), str(ready_after)]
    process = ServerProcess(command, address, {"EXTRA": "1"})
    try:
        yield process
    finally:
        process.kill()


def test_it_starts_answers_and_ends() -> None:
    with running(SERVE, ready_after=0.3) as process:
        process.wait_ready(30.0)
        process.check()
        assert process.end() == ""
        assert process.get("/metrics").text == "/metrics"
        answer = process.post("/load", {"a": 1}, key="k", seconds=10.0)
        assert (answer.status, answer.text) == (403, '{"a": 1}Bearer k')
        assert process.stop(20.0) == "exit code 0"
        assert process.wait() == "exit code 0"
        with pytest.raises(ServerFailed, match=r"has ended: exit code 0\. Its log ends with:\nit begins"):
            process.check()


def test_one_that_ends_at_once() -> None:
    with (
        running("print('no such repository'); sys.exit(3)") as process,
        pytest.raises(ServerFailed, match=r"ended before it was ready: exit code 3\. .*\nno such repository"),
    ):
        process.wait_ready(30.0)


def test_one_that_is_not_ready_in_time_is_killed() -> None:
    with running(SERVE, ready_after=1000.0) as process:
        with pytest.raises(ServerFailed, match=r"was not ready within 0.5 s"):
            process.wait_ready(0.5)
        assert process.end() == "killed by SIGKILL"


def test_one_that_does_not_listen_does_not_live() -> None:
    with running("time.sleep(1000)") as process, pytest.raises(ServerFailed, match=r"does not answer: .*refused"):
        process.check()


def test_one_that_ignores_sigterm_is_killed() -> None:
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('it ignores', flush=True)\n"
    serve = SERVE.partition("\n")[2].partition("\n")[2]
    with running(ignoring + serve) as process:
        process.wait_ready(30.0)
        assert process.stop(0.2) == "killed by SIGKILL"


def test_its_environment() -> None:
    with running("import os\nsys.exit(int(os.environ['EXTRA']) + 40)") as process:
        assert process.wait() == "exit code 41"


def test_a_command_that_is_not_there() -> None:
    process = ServerProcess(["/no/such/command"], free_address("127.0.0.1", 0, 0, 0))
    with pytest.raises(ServerFailed, match=r"exit code 127.*\n.*cannot run '/no/such/command': No such file"):
        process.wait_ready(30.0)
