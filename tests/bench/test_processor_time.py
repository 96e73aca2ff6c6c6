"""The command that tells what a request costs: whose turn it is, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import processor_time
from tests.bench.load import LoadGenerator
from tests.bench.measurement import LoadFailed
from tests.bench.peers import OURS, OURS_IN_PROCESS, Peer, Server
from tests.bench.prepare import Tools
from tests.bench.processor import Times
from tests.bench.processor_time import Costs, measure, peers, report
from tests.bench.rows import Row

ROW = Row("add_sub", "http", 1)
LOAD = LoadGenerator(Path("perf_analyzer"), {}, 1)


def test_the_servers_take_turns_and_what_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {name: Server(Peer(name, (), {}, "2"), Path("log")) for name in ("one", "other")}
    asked: list[str] = []

    def turn(server: Server, row: Row, load: LoadGenerator) -> tuple[float, Times]:
        asked.append(server.peer.name)
        if len(asked) == 2:
            raise LoadFailed("refused")
        return 1000.0 * len(asked), Times(1, 2, 3)

    monkeypatch.setattr(processor_time, "_turn", turn)
    one, other = measure(servers, [ROW], LOAD, rounds=2)
    assert asked == ["one", "other", "other", "one"]
    assert [throughput for throughput, _ in one.turns.values()] == [1000, 4000]
    assert {number: throughput for number, (throughput, _) in other.turns.items()} == {1: 3000}
    assert capsys.readouterr().err == "add_sub/http/1, other: refused\n"


def test_the_table_holds_microseconds_and_the_ratios_to_the_first_round_by_round() -> None:
    slow, fast = Times(140e-6, 50e-6, 30e-6), Times(100e-6, 50e-6, 10e-6)
    first = Costs(ROW, "A", {0: (2200, fast), 1: (2000, slow), 2: (2200, fast)})
    second = Costs(ROW, "B", {1: (3000, Times(70e-6, 25e-6, 15e-6))})
    lines = report([first, second, Costs(ROW, "C")]).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells == [
        ["add_sub/http/1", "A", "100", "50", "150", "10", "160", "1.000", "2,200", "1.000"],
        ["add_sub/http/1", "B", "70", "25", "95", "15", "110", "0.500", "3,000", "1.500"],
        ["add_sub/http/1", "C", *["-"] * 8],
    ]


def test_checkouts_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor_time, "DEFAULT_FOLDER", tmp_path)
    tools = Tools(Path("t"), Path("b"), Path("p"), "2.41.0", "1.26.4", {}, {})
    found = peers([Path("/a"), Path("/b")], [OURS, OURS_IN_PROCESS], tools)
    assert list(found) == ["worker /a", "in process /a", "worker /b", "in process /b"]
    assert [peer.environment["PYTHONPATH"] for peer in found.values()] == ["/a", "/a", "/b", "/b"]
    assert list(peers([Path("/a")], [OURS], tools)) == ["worker"]
