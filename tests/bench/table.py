"""Tables as Markdown, their columns padded so that they are read as well in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

NOT_MEASURED = "-"


def table(header: Sequence[str], lines: Sequence[Sequence[str]], *, text_columns: int) -> str:
    """A Markdown table; columns after the first `text_columns` are aligned right. A bar in a cell is escaped."""
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in [header, *lines]]
    widths = [max(len(line[column]) for line in escaped) for column in range(len(header))]
    rules = ["-" * width if column < text_columns else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    drawn = []
    for line in [escaped[0], rules, *escaped[1:]]:
        cells = [
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        drawn.append("| " + " | ".join(cells) + " |")
    return "\n".join(drawn)
