"""The command that counts what a request costs: its servers, what is taken off, and its tables."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.bench import counted as program
from tests.bench import request_instructions
from tests.bench.callgrind import Work
from tests.bench.python_calls import CallsMade
from tests.bench.request_instructions import Cost, bursts_of, functions, main, measure, measure_calls, report
from tests.bench.rows import ROWS, Row

ROW = Row("add_sub", "http", 64)
OTHER = Row("large", "shm", 8)


class Asking:
    """Bursts that nobody answers."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, times: int) -> None:
        self.asked.append(times)


def test_rows_have_whole_bursts() -> None:
    assert all(bursts_of(row) >= 1 for row in ROWS)
    assert (bursts_of(ROW), bursts_of(OTHER)) == (6, 6)


def test_time_limits_of_this_checkout_are_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [(name, limit) for name, limit in program.TIME_LIMITS if not name.endswith("model_instance")]
    for name, limit in there:
        monkeypatch.setattr(importlib.import_module(name), limit, 0.001)  # fails where it is not there
    program.lift_time_limits()
    assert {getattr(importlib.import_module(name), limit) for name, limit in there} == {program.LONG_SECONDS}


def test_a_system_without_pidfds_is_told_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    program.do_without_pidfds()
    assert not hasattr(os, "pidfd_open")
    monkeypatch.setattr(os, "pidfd_open", lambda pid: os.dup(0), raising=False)
    program.do_without_pidfds()
    assert hasattr(os, "pidfd_open")


def test_calls_of_a_request_are_without_those_of_an_idle_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking()
    monkeypatch.setattr(request_instructions, "bursts", lambda *_: asking)
    made = iter([CallsMade({"tick": 10}, 5.0), CallsMade({"tick": 4, "answer": 768}, 2.0)])
    meter = SimpleNamespace(during=lambda work: next(made))
    cost = Cost()
    measure_calls(None, meter, ROW, 1, cost)  # type: ignore[arg-type]
    assert cost.calls == [{"tick": 0.0, "answer": 2.0}]
    assert asking.asked == [request_instructions.WARMING_REQUESTS // ROW.concurrency]


def test_what_fails_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def count(row: Row, turns: int, cost: Cost) -> None:
        if row is OTHER:
            raise RuntimeError("refused")
        cost.server.append(Work(100.0, 2.0, 1.0))

    servers = [SimpleNamespace(title="A", instructions=SimpleNamespace(measure=count), server=None, meter=None)]
    monkeypatch.setattr(request_instructions, "measure_calls", lambda *_: None)
    costs = measure(servers, [ROW, OTHER], 1)  # type: ignore[arg-type]
    assert "large/shm/8, A: refused\n" in capsys.readouterr().err
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report(costs).splitlines()]
    assert lines[0] == ["row", "instructions", "system calls"]
    assert lines[2:] == [["add_sub/http/64", "100", "2.0"], ["large/shm/8", "-", "-"]]


def test_the_last_is_compared_with_the_first() -> None:
    first = Cost([Work(100, 4, 1), Work(120, 4, 1), Work(90, 4, 1)], [Work(10, 1, 1)], [{"a.b x.py:1": 3.0}])
    last = Cost([Work(103, 3, 1)], [Work(12, 1, 1)], [{"a.b x.py:1": 1.0, "c y.py:2": 4.0}])
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in report({ROW: [first, last]}).splitlines()
    ]
    assert lines[0] == [
        "row",
        *("instructions", "last", "ratio", "system calls", "last", "ratio", "Python calls", "last", "ratio"),
        *("worker's instructions", "last", "ratio", "worker's system calls", "last", "ratio"),
    ]
    assert lines[2] == [
        "add_sub/http/64",
        *("100", "103", "1.030", "4.0", "3.0", "0.750", "3.0", "5.0", "1.667"),
        *("10", "12", "1.200", "1.0", "1.0", "1.000"),
    ]
    told = functions(ROW, [first, last], 1).splitlines()
    assert told[-1].strip("| ").split() == ["c", "y.py:2", "|", "0.00", "|", "4.00", "|", "+4.00"]


def test_without_valgrind_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="valgrind is not there"):
        main([])
