"""The servers of a run: what a turn gives, and how one that ends is noted and started again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench import entrants
from tests.bench.contest import Turn
from tests.bench.entrants import Entrant
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed
from tests.bench.peers import OURS, Peer, Server
from tests.bench.processor import Times
from tests.bench.rows import Row

ROW = Row("add_sub", "http", 1)
READY_SERVER = """
import http.server, json, sys
flags = dict(flag[2:].split("=", 1) for flag in sys.argv[1:])
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        self.send_response(200)
        self.end_headers()
        if self.path == "/v2/models/add_sub/stats":
            asked += 10
            stats = {"model_stats": [{"inference_stats": {"success": {"count": asked}}}]}
            self.wfile.write(json.dumps(stats).encode())
    def log_message(self, *args):
        pass
http.server.HTTPServer((flags["http-address"], int(flags["http-port"])), Handler).serve_forever()
"""


def load_of(folder: Path, body: str) -> LoadGenerator:
    program = folder / "perf_analyzer"
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    program.chmod(0o755)
    return LoadGenerator(program, {}, window_ms=1)


def test_a_turn_has_the_processor_s_time_of_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([Times(1, 0, 0), Times(1.002, 0.001, 0.003)])
    monkeypatch.setattr("tests.bench.processor.tree_times", lambda pid: next(times))
    report = "Inferences/Second,p50 latency,p99 latency\n5,6,7\n"
    entrant = Entrant(Server(Peer(OURS, (sys.executable, "-c", READY_SERVER), {}, "2"), tmp_path / "log"))
    try:
        measured = entrant.attempt(Turn(0, ROW, OURS), load_of(tmp_path, f"open(sys.argv[-1], 'w').write({report!r})"))
    finally:
        entrant.server.stop()
    assert (measured.throughput, measured.p50, measured.p99) == (5, 6, 7)
    assert measured.processor == pytest.approx(600)
    assert entrant.incidents == []


def test_a_server_that_ends_in_a_turn_is_noted_and_started_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrant = Entrant(Server(Peer(OURS, (sys.executable, "-c", READY_SERVER), {}, "2"), tmp_path / "log"))

    def end(row: Row, address: str) -> None:
        process = entrant.server.process
        assert process is not None
        process.kill()
        process.wait()
        raise LoadFailed("connection lost")

    load = load_of(tmp_path, "")
    monkeypatch.setattr(LoadGenerator, "run", lambda self, row, address: end(row, address))
    try:
        for number in (0, 1):
            with pytest.raises(LoadFailed, match="connection lost"):
                entrant.attempt(Turn(number, ROW, OURS), load)
    finally:
        entrant.server.stop()
    title = entrants.TITLES[OURS]
    assert entrant.incidents == [
        f"{title} ended with exit code -9 during add_sub/http/1, round {number}" for number in (1, 2)
    ]
