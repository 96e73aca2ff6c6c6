"""Counting the instructions of the defaults: what is read of valgrind's files, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.default_instructions import (
    WITHOUT,
    Counter,
    CountFailed,
    InstructionCost,
    counted,
    report,
    total,
)
from tests.bench.peers import our_server

DUMP = "version: 1\ncreator: callgrind-3.19.0\nevents: Ir\nsummary: 1234567\n\nfl=(1) a.c\n"


def test_the_same_server_runs_counted() -> None:
    peer = our_server()
    command = counted(peer, Path("f")).command
    assert command[:2] == ("valgrind", "--tool=callgrind")
    assert command[-2 - len(peer.command) : -2] == peer.command


def test_what_is_left_out_is_part_of_all() -> None:
    *some, (_, everything) = WITHOUT
    assert all(flags and set(flags) <= set(everything) for _, flags in some)


def test_a_total_is_read_wherever_it_stands() -> None:
    assert total(DUMP) == 1234567
    assert total("events: Ir\nfl=(1) a.c\n12 34\ntotals: 34\n") == 34
    with pytest.raises(CountFailed, match="no total"):
        total("events: Ir\n")


def test_only_what_was_counted_during_the_work_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    (tmp_path / "counts.1").write_text("totals: 99\n")  # of a turn before

    def control(self: Counter, option: str) -> None:
        asked.append(option)
        if option == "--dump":
            (tmp_path / f"counts.{len(asked)}").write_text(DUMP)

    monkeypatch.setattr(Counter, "_control", control)
    counter = Counter(1, tmp_path / "counts")
    assert counter.during(lambda: asked.append("work")) == 1234567
    assert asked == ["--zero", "work", "--dump"]
    monkeypatch.setattr(Counter, "_control", lambda *_: None)
    with pytest.raises(CountFailed, match="0 files"):
        counter.during(lambda: None)


def test_the_cost_is_of_a_request_without_it() -> None:
    costs = [InstructionCost("http", "logs", 1010.0, 1000.0), InstructionCost("grpc", "metrics", 1050.0, 1000.0)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report(costs).splitlines()[2:]]
    assert lines == [
        ["http", "logs", "1,010", "1,000", "1.0", "≤ 3.00 met"],
        ["grpc", "metrics", "1,050", "1,000", "5.0", "≤ 3.00 not met"],
    ]
