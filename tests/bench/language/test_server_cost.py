"""What a streamed token costs, for real, of few tokens."""

from __future__ import annotations

import pytest

from tests.bench.language import server_cost
from tests.bench.language.server_cost import Turn, report

pytestmark = pytest.mark.slow


def test_each_way_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    server_cost.main(["--model", "scripted", "--streams", "2", "--tokens", "256", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines[2:]] == ["chat", "completions", "generate_stream"]
    for line in lines[2:]:
        server_us, tokens_per_event, tokens_per_second = (float(cell.replace(",", "")) for cell in line.split("|")[5:8])
        assert server_us >= 0  # of so few tokens the kernel may count no time
        assert tokens_per_event > 0.5
        assert tokens_per_second > 0


def test_the_table_has_medians() -> None:
    turns = [Turn(1000.0 * each, each, 2.0, 1.0) for each in (1, 3, 2)]
    assert "|               2.0 |         1.00 |    2,000 |" in report({("tiny", "chat", 1, "here"): turns})
