"""The load of streamed answers: what it counts, and what it takes for a failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.bench.language.streams import Load, StreamFailed, run

EVENTS = 5


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if body == b"refuse":
            self.send_error(400)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (b"data: role\n\n", *[b"data: text\n\n"] * (EVENTS - 1)):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n" if body != b"cut" else b"")
        self.close_connection = body == b"cut"

    def log_message(self, *arguments: object) -> None:
        """Nothing: the test's output is its own."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_address[1]
        server.shutdown()
        serving.join()


def test_every_answer_of_every_stream_is_counted(port: int) -> None:
    streamed = run(Load("127.0.0.1", port, "/", b"go", streams=3, answers=4, mark=b"text"))
    assert (streamed.answers, streamed.events) == (12, 12 * EVENTS)
    assert len(streamed.first_token) == 12
    assert min(streamed.first_token) > 0


@pytest.mark.parametrize(("body", "text"), [(b"refuse", "400"), (b"cut", "ended inside an answer")])
def test_an_answer_that_is_no_whole_stream_is_a_failure(port: int, body: bytes, text: str) -> None:
    with pytest.raises(StreamFailed, match=text):
        run(Load("127.0.0.1", port, "/", body, streams=1, answers=1, mark=b"text"))
