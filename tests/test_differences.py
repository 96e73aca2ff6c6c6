"""The table of docs/differences.md: each difference is there once, and whole."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs" / "differences.md").read_text()
ROWS = [line for line in TEXT.splitlines() if line.startswith("|")][2:]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def test_each_row_says_what_both_do() -> None:
    assert len(ROWS) > 100
    assert [row for row in ROWS if len(cells(row)) != 3 or not all(cells(row))] == []
    assert [row for row in ROWS if cells(row)[1] == cells(row)[2]] == []


def test_no_difference_is_told_twice() -> None:
    subjects = [cells(row)[0] for row in ROWS]
    assert sorted({each for each in subjects if subjects.count(each) > 1}) == []
    assert len(set(ROWS)) == len(ROWS)
