"""The table of language models, without a run."""

from __future__ import annotations

from pathlib import Path

from tests.bench.language.__main__ import Line, against, build, report, same_engine
from tests.bench.language.server_cost import Turn


def speeds(*values: float) -> list[Turn]:
    return [Turn(value, 20.0, 5.0, 1.0) for value in values]


def test_a_row_is_held_to_what_is_beside_it() -> None:
    assert against("row", speeds(300, 100, 200), speeds(100, 90, 110), 2.0) == Line("row", "200", "100", "≥ 2.00 met")
    assert against("row", speeds(100), speeds(100), 2.0).goal == "≥ 2.00 not met"


def test_one_engine_behind_two_servers_is_held_by_neighbouring_turns() -> None:
    """As the machine slows down, each is beside a turn that was as slow."""
    ours, theirs = speeds(300, 200, 98), speeds(290, 204, 100)
    speed, first = same_engine("row", ours, theirs)
    assert speed == Line("row", "200", "204", "≥ 0.95 met")
    assert first == Line("the same, first token, ms", "5", "5", "≤ 1.00 met")
    assert same_engine("row", speeds(90, 90), speeds(100, 100))[0].goal == "≥ 0.95 not met"


def test_what_is_not_installed_leaves_its_cells_empty() -> None:
    assert against("row", speeds(2000), None, 2.0) == Line("row", "2,000", "-", "≥ 2.00")
    assert "| row |" in report([against("row", speeds(2000), None, None)])


def test_without_a_converter_there_is_no_model_but_one_that_is_there(tmp_path: Path) -> None:
    assert build(None, tmp_path) is None
    (tmp_path / "llama-30m").mkdir()
    assert build(None, tmp_path) == tmp_path / "llama-30m"
