"""Processor time of a process tree, read from a `/proc` of files, and once from the real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench import processor
from tests.bench.peers import Peer, Server
from tests.bench.processor import TICKS, Meter, Times, tree_times


def add_process(proc: Path, pid: int, parent: int, user: int, system: int) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "status").write_text(f"Name:\tpython3\nPPid:\t{parent}\n")
    (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0 -1 0 0 0 0 0 {user} {system} 7 7 20 0 1 0 9\n")


def test_the_time_of_children_is_told_apart(tmp_path: Path) -> None:
    for pid, parent, user, system in ((10, 1, 300, 100), (11, 10, 20, 10), (12, 11, 3, 2), (13, 1, 999, 999)):
        add_process(tmp_path, pid, parent, user, system)
    times = tree_times(10, tmp_path)
    assert (times.user * TICKS, times.system * TICKS, times.workers * TICKS) == pytest.approx((300, 100, 35))
    assert times.total * TICKS == pytest.approx(435)


def test_a_process_that_ended_meanwhile_counts_nothing(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, 300, 100)
    add_process(tmp_path, 11, 10, 20, 10)
    (tmp_path / "11" / "stat").unlink()
    assert tree_times(10, tmp_path).workers == 0


def test_this_very_process_has_used_some() -> None:
    assert tree_times(os.getpid()).user > 0


def test_a_meter_divides_what_came_since_by_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    times, counts = iter([Times(1, 2, 3), Times(3, 3, 3.5)]), iter([100, 110])
    monkeypatch.setattr(processor, "_of", lambda server: next(times))
    monkeypatch.setattr(processor, "answered", lambda server, model: next(counts))
    meter = Meter.begin(Server(Peer("one", (), {}, "2"), Path("log")), "add_sub")
    assert meter.per_request() == Times(0.2, 0.1, 0.05)


def test_a_turn_without_requests_costs_no_time_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_of", lambda server: Times(1, 2, 3))
    monkeypatch.setattr(processor, "answered", lambda server, model: 5)
    with pytest.raises(ValueError, match="one has answered no request to add_sub"):
        Meter.begin(Server(Peer("one", (), {}, "2"), Path("log")), "add_sub").per_request()


def test_a_server_that_does_not_run_has_no_time() -> None:
    with pytest.raises(ValueError, match="one does not run"):
        processor._of(Server(Peer("one", (), {}, "2"), Path("log")))
