"""Plain text tables, and the start-up table of models, versions and status."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from protocol.core import ModelIndex
from repository.layout import identifier

# Where the last column's text is broken; long reasons stay readable in a terminal and in a log viewer.
LINE_WIDTH = 118
LEAST_COLUMN_WIDTH = 40


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = LINE_WIDTH) -> str:
    """A table drawn with `+`, `-` and `|`, no wider than `width` as far as wrapping its last column can do."""
    widths = [max(_text_width(row[i]) for row in (header, *rows)) for i in range(len(header))]
    borders = 3 * len(header) + 1
    room = max(LEAST_COLUMN_WIDTH, width - borders - sum(widths[:-1]))
    body = [_broken(row, room) for row in rows]
    widths[-1] = max(len(header[-1]), *(len(line) for cells in body for line in cells[-1]), 0)

    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"
    lines = [rule, _line(header, widths), rule]
    for cells in body:
        lines += [_line(parts, widths) for parts in zip_longest(*cells, fillvalue="")]
    return "\n".join([*lines, rule])


def model_table(index: Sequence[ModelIndex]) -> str:
    """The models of a repository index, in order of name and version, each with its status and what is wrong."""
    rows = [
        (identifier(entry.namespace, entry.name), entry.version or "-", _status(entry))
        for entry in sorted(index, key=lambda entry: (identifier(entry.namespace, entry.name), entry.version.zfill(20)))
    ]
    return format_table(("Model", "Version", "Status"), rows)


def _status(entry: ModelIndex) -> str:
    state = entry.state or "not loaded"
    return f"{state}: {entry.reason}" if entry.reason else state


def _text_width(text: str) -> int:
    return max((len(line) for line in text.splitlines()), default=0)


def _broken(row: Sequence[str], room: int) -> list[list[str]]:
    """The lines of each cell; those of the last cell are no longer than `room`."""
    *first, last = row
    wrapped = [part for line in last.splitlines() for part in textwrap.wrap(line, room) or [""]]
    return [*(cell.splitlines() or [""] for cell in first), wrapped or [""]]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "|" + "|".join(f" {cell:<{w}} " for cell, w in zip(cells, widths, strict=True)) + "|"
