"""Counting the calls that a request costs: the counter, and the server that it runs in."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.bench import counted as program
from tests.bench import python_calls
from tests.bench.counted import CallCounter
from tests.bench.load import LoadGenerator
from tests.bench.measurement import Measurement
from tests.bench.peers import Peer, Server, our_server
from tests.bench.python_calls import Counts, count, report, scripted
from tests.bench.rows import Row

ROW = Row("add_sub", "http", 64)


def busy() -> None:
    pass


def test_calls_between_two_signals_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    counter = CallCounter(file)
    busy()
    counter.toggle()
    for _ in range(3):
        busy()
    counter.toggle()
    found = {function.split()[0]: calls for calls, function in json.loads(file.read_text())}
    assert found["busy"] == 3
    counter.toggle()
    counter.toggle()
    assert "busy" not in file.read_text()


def test_the_same_server_runs_counted() -> None:
    peer = our_server()
    python, *_ = peer.command
    assert scripted(peer, Path("f")).command[:3] == (python, program.__file__, "f")
    assert scripted(peer, Path("f")).command[3:] == peer.command[3:]


def test_a_turn_counts_the_requests_that_were_answered_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(python_calls, "SETTLING_SECONDS", 0.0)
    monkeypatch.setattr(python_calls, "COUNTING_SECONDS", 0.0)
    monkeypatch.setattr(LoadGenerator, "run", lambda *_: Measurement(1.0, 1.0, 1.0))
    answers = iter((100, 150))
    monkeypatch.setattr(python_calls, "answered", lambda *_: next(answers))
    file = tmp_path / "calls.json"
    signals: list[int] = []

    class Process:
        def send_signal(self, number: int) -> None:
            signals.append(number)
            file.unlink(missing_ok=True)
            if len(signals) == 2:
                file.write_text('[[100, "infer a.py:1"], [25, "other b.py:2"]]')

    server = Server(Peer("ours", (), {}, "2"), Path("log"))
    monkeypatch.setattr(server, "process", Process())
    found = count(server, file, ROW, LoadGenerator(Path("perf_analyzer"), {}, 1))
    assert signals == [signal.SIGUSR2] * 2
    assert found == Counts(50, [(100, "infer a.py:1"), (25, "other b.py:2")])
    lines = report(ROW, found, 1).splitlines()
    assert lines[0] == "add_sub/http/64: 2 calls a request, of 50 requests"
    assert lines[-1].split() == ["|", "infer", "a.py:1", "|", "2.00", "|"]
