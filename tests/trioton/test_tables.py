"""Tables: drawn to the character, wrapped at the last column, sorted by name and version."""

from __future__ import annotations

from protocol.core import ModelIndex
from trioton.tables import format_table, model_table


def test_a_table_to_the_character() -> None:
    assert format_table(("Model", "V"), [("a", "1"), ("bcdefgh", "22")]) == "\n".join(
        [
            "+---------+----+",
            "| Model   | V  |",
            "+---------+----+",
            "| a       | 1  |",
            "| bcdefgh | 22 |",
            "+---------+----+",
        ]
    )


def test_a_table_without_rows() -> None:
    assert format_table(("Model",), []).count("\n") == 3


def test_a_long_last_column_is_wrapped() -> None:
    """All lines have one width, none is longer than asked for, and no word is lost."""
    reason = "Invalid argument: " + " ".join(f"word{i}" for i in range(60)) + "\n  at line 3"
    lines = format_table(("Model", "Status"), [("a", reason), ("b", "READY")], width=80).splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= 80
    shown = " ".join(line.split("|")[2].strip() for line in lines if line.startswith(("| a", "|  ")))
    assert shown.split() == reason.split()


def test_the_models_and_how_they_fare() -> None:
    """Versions in the order of numbers, the reason behind the state, models never loaded as such."""
    index = [
        ModelIndex("b", "10", "READY"),
        ModelIndex("b", "9", "READY"),
        ModelIndex("c"),
        ModelIndex("a", "", "UNAVAILABLE", "Internal: broken"),
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in model_table(index).splitlines() if "|" in line]
    assert rows == [
        ["Model", "Version", "Status"],
        ["a", "-", "UNAVAILABLE: Internal: broken"],
        ["b", "9", "READY"],
        ["b", "10", "READY"],
        ["c", "-", "not loaded"],
    ]
