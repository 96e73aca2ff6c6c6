"""The file of `trioton serve --config`: TOML with the flags by their names, to typed values.

Pure but for the reading of the file. `trioton.cli` puts the environment and the command line over it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trioton.flags.fields import Flag, UsageError, parse_value

# What no file can say: which file is read.
CONFIG_FLAG = "config"


@dataclass(frozen=True, slots=True)
class _File:
    """A file that was read, for errors: they name the line, as far as that is found."""

    path: Path
    text: str

    def place(self, key: str) -> str:
        pattern = re.compile(rf"""\s*\[*["']?{re.escape(key)}["']?\s*[=\].]""")
        for number, line in enumerate(self.text.splitlines(), 1):
            if pattern.match(line):
                return f"{self.path}:{number}: {key}"
        return f"{self.path}: {key}"


def read_config_file(table: Sequence[Flag], path: Path) -> dict[str, Any]:
    """Field values of the flags in a file; `-` and `_` in names are the same.

    Raises:
        UsageError: the file cannot be read, is no TOML, or a key or value is none of a flag's.
    """
    try:
        text = path.read_text(encoding="utf-8")
        members = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--{CONFIG_FLAG}: cannot read '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected TOML, such as `http-port = 9000`: {error}") from None
    file = _File(path, text)
    by_name = {name: row for row in table for name in (row.name, *row.aliases) if row.name != CONFIG_FLAG}
    values: dict[str, Any] = {}
    for key, given in members.items():
        row = by_name.get(key.replace("_", "-"))
        if row is None:
            raise UsageError(_unknown(file.place(key), key, by_name))
        if row.field_name in values:
            raise UsageError(f"{file.place(key)}: --{row.name} is set above, too")
        values[row.field_name] = _value(row, given, file.place(key))
    return values


def _value(row: Flag, given: object, place: str) -> object:
    if row.is_repeatable:
        parts = given if isinstance(given, list) else [given]
        return tuple(parse_value(row, _text(part, place), place) for part in parts)
    if isinstance(given, list):
        raise UsageError(f"{place}: expected one value, got a list of {len(given)}")
    return parse_value(row, _text(given, place), place)


def _text(given: object, place: str) -> str:
    """As a flag has it."""
    match given:
        case bool():
            return str(given).lower()
        case str():
            return given
        case int() | float():
            return str(given)
    kind = "a table" if isinstance(given, dict) else type(given).__name__
    raise UsageError(f"{place}: expected a text, a number or a Boolean, got {kind}")


def _unknown(place: str, key: str, known: Mapping[str, Flag]) -> str:
    nearest = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{place}: expected the name of a flag of trioton serve without its dashes{hint}"
