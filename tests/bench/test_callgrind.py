"""Counting instructions: how a server is started for it, and what is read of valgrind's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import callgrind
from tests.bench.callgrind import Counter, CountFailed, Work, counted, forget, totals
from tests.bench.peers import our_server

DUMP = "version: 1\ncreator: callgrind-3.19.0\nevents: Ir sysCount sysTime\nsummary: 1234567 89 4000\n\nfl=(1) a.c\n"


@pytest.mark.parametrize("with_workers", [False, True])
def test_the_same_server_runs_counted(with_workers: bool) -> None:
    peer = our_server()
    slow = counted(peer, Path("f"), with_workers=with_workers)
    assert slow.command[:2] == ("valgrind", "--tool=callgrind")
    assert (f"--trace-children={'yes' if with_workers else 'no'}") in slow.command
    assert slow.command[-2 - len(peer.command) : -2] == peer.command
    assert {**slow.environment, **peer.environment} == slow.environment


def test_totals_are_read_wherever_they_stand() -> None:
    assert totals(DUMP) == (1234567, 89)
    assert totals("events: Ir\nfl=(1) a.c\n12 34\ntotals: 34\n") == (34, 0)
    with pytest.raises(CountFailed, match="no total"):
        totals("events: Ir\n")


def test_only_what_was_counted_during_the_work_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    (tmp_path / "counts.7.1").write_text("events: Ir\ntotals: 99\n")  # of a turn before

    def control(self: Counter, option: str) -> None:
        asked.append(option)
        if option == "--dump":
            (tmp_path / f"counts.7.{len(asked)}").write_text(DUMP)
            (tmp_path / "counts.8.1").write_text("events: Ir\ntotals: 1\n")  # of another process

    monkeypatch.setattr(Counter, "_control", control)
    counter = Counter(7, tmp_path / "counts")
    work = counter.during(lambda: asked.append("work"))
    assert (work.instructions, work.system_calls) == (1234567, 89)
    assert asked == ["--zero", "work", "--dump"]
    monkeypatch.setattr(Counter, "_control", lambda *_: None)
    with pytest.raises(CountFailed, match="0 files"):
        counter.during(lambda: None)
    forget(tmp_path / "counts")
    assert not list(tmp_path.iterdir())


def test_what_a_server_does_by_itself_is_taken_off_by_the_time() -> None:
    work = Work(1000, 100, 2.0).without(Work(200, 40, 4.0))
    assert work == Work(900, 80, 2.0)
    assert work / 10 == Work(90, 8, 0.2)
    assert work + Work(100, 20, 1.0) == Work(1000, 100, 2.0)


def test_a_process_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = tmp_path / "callgrind_control"
    control.write_text("#!/bin/sh\nexec sleep 60\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(callgrind, "CONTROL_SECONDS", 0.05)
    with pytest.raises(CountFailed, match="--zero"):
        Counter(7, tmp_path / "counts").zero()
