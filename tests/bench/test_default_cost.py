"""What the defaults cost: the order of the turns, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import default_cost
from tests.bench.default_cost import DefaultCost, report
from tests.bench.load import LoadGenerator
from tests.bench.peers import Peer, Server
from tests.bench.rows import Row

ROW = Row("add_sub", "http", 1)


def test_the_servers_take_turns_after_one_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def cost(row: Row, server: Server, load: LoadGenerator) -> float:
        asked.append(server.peer.name)
        return float(len(asked))

    monkeypatch.setattr(default_cost, "_cost", cost)
    servers = [Server(Peer(name, (), {}, "2"), Path("log")) for name in ("on", "off")]
    measured = default_cost._measure_row(ROW, servers, LoadGenerator(Path("none"), {}, 1), rounds=2)
    assert asked == ["on", "off", "off", "on", "on", "off"]
    assert (measured.on, measured.off) == ([4, 5], [3, 6])


def test_the_cost_is_the_median_of_the_rounds() -> None:
    costs = [DefaultCost(ROW, [102, 110, 99], [100, 100, 100]), DefaultCost(ROW, [104, 104], [100, 100])]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report(costs).splitlines()[2:]]
    assert lines == [
        ["add_sub/http/1", "102.0", "100.0", "2.0", "0.5 to 6.0", "≤ 3.00 met"],
        ["add_sub/http/1", "104.0", "100.0", "4.0", "4.0 to 4.0", "≤ 3.00 not met"],
    ]
