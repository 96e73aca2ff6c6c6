"""Checks of the tables of an auth keys file: what is in it, of which type, and what is wrong with it, in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

# Of a number above 0. With less, times and shares have no floating-point number any more.
_LEAST = 1e-9
_TYPE_WORDS = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    list: "an array",
    dict: "a table",
}


class Mistake(Exception):
    """What is wrong in a file, without the file's name."""


def read_table(value: object, where: str, form: str = "") -> dict[str, Any]:
    """The table at a place; `form` is how it is written, if not `[<where>]`. Raises Mistake."""
    if not isinstance(value, dict):
        raise Mistake(f"'{where}' must be a table {form or f'[{where}]'}, got {type_word(value)}")
    return value


def read_number(table: dict[str, Any], name: str, where: str, *, most: float) -> float:
    """A number above 0 that a table has. Raises Mistake."""
    value = table[name]
    if type(value) not in (int, float):
        raise Mistake(f"[{where}] '{name}' must be a number, got {type_word(value)}")
    if not 0 < value <= most:
        raise Mistake(f"[{where}] '{name}' must be above 0 and at most {most:g}, got {number_text(value)}")
    if value < _LEAST:
        raise Mistake(f"[{where}] '{name}' must be at least {_LEAST:g}, got {value:g}")
    return float(value)


def number_text(value: float) -> str:
    """A number that may be an integer of any size, in few characters."""
    try:
        return f"{value:g}"
    except OverflowError:
        return "an integer of more than 300 digits"


def refuse_unknown(table: dict[str, Any], known: Collection[str], noun: str, where: str = "") -> None:
    """Raises Mistake: the table has a name that is not known."""
    for name in table:
        if name not in known:
            place = f"[{where}] has" if where else "has"
            raise Mistake(f"{place} the unknown {noun} {name[:40]!r}, expected {words(known, 'or')}")


def words(names: Collection[str], last: str = "and") -> str:
    """Names in a sentence."""
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end


def type_word(value: object) -> str:
    """The type of a value as TOML calls it."""
    return _TYPE_WORDS.get(type(value), "a date or a time")
