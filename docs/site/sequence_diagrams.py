"""Mermaid's sequence diagrams as SVG: of its language what our pages use, and no more.

Participants, messages (`->>`, `-->>`, and `--x` for one that is lost), notes over a participant, and `alt` with `else`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

LETTER = 6.6  # the width of a letter, about, in the size that the style sheet gives
ROW = 30
BOX = 28  # the height of a participant's box
MARGIN = 12
LEAST_GAP = 90

PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
MESSAGE = re.compile(r"(\w+)(-->>|->>|--x)(\w+): (.+)")
NOTE = re.compile(r"Note over (\w+): (.+)")
BRANCH = re.compile(r"(alt|else) (.+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the diagram. `kind` is an arrow of Mermaid's, "note", "alt", "else" or "end"."""

    kind: str
    text: str = ""
    start: int = 0
    end: int = 0


def svg_of(code: str) -> str:
    """The diagram as an `svg` element in the colours of the text around it.

    Raises:
        ValueError: a line is none that is known here.
    """
    names, rows = parsed(code)
    places = columns(names, rows)
    width = places[-1] + max(len(names[-1]) * LETTER / 2, own_width(rows, len(names) - 1)) + 2 * MARGIN
    height = BOX + ROW * (len(rows) + 1)
    parts = [
        f'<svg viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">',
        *(part for name, x in zip(names, places, strict=True) for part in participant(name, x, height)),
        *(part for index, row in enumerate(rows) for part in drawn(row, places, BOX + ROW * (index + 1), width)),
        "</svg>",
    ]
    return "".join(parts)


def parsed(code: str) -> tuple[list[str], list[Row]]:
    """The participants' names, and what passes between them by their numbers."""
    names: list[str] = []
    numbers: dict[str, int] = {}
    rows: list[Row] = []
    for line in (line.strip() for line in code.strip().splitlines()[1:]):
        if found := PARTICIPANT.fullmatch(line):
            numbers[found[1]] = len(names)
            names.append(found[2])
        elif found := MESSAGE.fullmatch(line):
            rows.append(Row(found[2], found[4], numbers[found[1]], numbers[found[3]]))
        elif found := NOTE.fullmatch(line):
            rows.append(Row("note", found[2], numbers[found[1]], numbers[found[1]]))
        elif found := BRANCH.fullmatch(line):
            rows.append(Row(found[1], found[2]))
        elif line == "end":
            rows.append(Row("end"))
        elif line:
            raise ValueError(f"a sequence diagram has a line that cannot be drawn: {line}")
    return names, rows


def columns(names: list[str], rows: list[Row]) -> list[float]:
    """Where the participants' lines are: each text has room, from left to right."""
    places = [len(names[0]) * LETTER / 2 + 2 * MARGIN]
    for number in range(1, len(names)):
        boxes = (len(names[number - 1]) + len(names[number])) * LETTER / 2 + 3 * MARGIN
        room = [places[-1] + max(LEAST_GAP, boxes, own_width(rows, number - 1))]
        for row in rows:
            low, high = sorted((row.start, row.end))
            if high == number and low < high:
                room.append(places[low] + len(row.text) * LETTER + 2 * MARGIN)
        places.append(max(room))
    return places


def own_width(rows: list[Row], number: int) -> float:
    """The room at the right of a participant's line that its notes and its messages to itself take."""
    own = [row for row in rows if row.text and row.start == row.end == number and row.kind not in ("alt", "else")]
    return max((len(row.text) * LETTER + 3 * MARGIN for row in own), default=0.0)


def participant(name: str, x: float, height: float) -> Iterator[str]:
    half = len(name) * LETTER / 2 + MARGIN / 2
    yield f'<line class="life" x1="{x:.0f}" y1="{BOX}" x2="{x:.0f}" y2="{height}"/>'
    yield f'<rect x="{x - half:.0f}" y="1" width="{2 * half:.0f}" height="{BOX - 2}" rx="3"/>'
    yield f'<text x="{x:.0f}" y="{BOX / 2 + 4:.0f}" text-anchor="middle">{escape(name)}</text>'


def drawn(row: Row, places: list[float], y: float, width: float) -> Iterator[str]:
    start, end, text = places[row.start], places[row.end], escape(row.text)
    if row.kind in ("alt", "else", "end"):
        yield f'<line class="branch" x1="{MARGIN}" y1="{y - 16}" x2="{width - MARGIN:.0f}" y2="{y - 16}"/>'
        if text:
            yield f'<text class="branch" x="{MARGIN}" y="{y}">{row.kind} {text}</text>'
    elif row.kind == "note":
        yield f'<text class="note" x="{start + MARGIN / 2:.0f}" y="{y}">{text}</text>'
    elif row.start == row.end:
        yield f'<path class="arrow" d="M {start:.0f} {y - 12} h 14 v 12 h -8"/>'
        yield head(start + 2, y, -1)
        yield f'<text x="{start + 20:.0f}" y="{y - 2}">{text}</text>'
    else:
        side = 1 if end > start else -1
        dashed = " dashed" if row.kind.startswith("--") else ""
        yield f'<line class="arrow{dashed}" x1="{start:.0f}" y1="{y}" x2="{end - 2 * side:.0f}" y2="{y}"/>'
        yield cross(end - 5 * side, y) if row.kind.endswith("x") else head(end, y, side)
        yield f'<text x="{(start + end) / 2:.0f}" y="{y - 5}" text-anchor="middle">{text}</text>'


def head(x: float, y: float, side: int) -> str:
    return f'<path class="head" d="M {x:.0f} {y} l {-8 * side} -4 v 8 z"/>'


def cross(x: float, y: float) -> str:
    return f'<path class="arrow" d="M {x - 4:.0f} {y - 4} l 8 8 m 0 -8 l -8 8"/>'
