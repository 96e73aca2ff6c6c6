"""Tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from trioton.report.markup import Markup, element, shortened
from trioton.report.numbers import number
from trioton.report.place import Place

Cell: TypeAlias = str | float | bool | None
"""Numbers are formatted and stand at the right; None is shown as a dash."""

MOST_ROWS = 500
_MOST_COLUMNS = 50
_MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the rows. Those of `marked` are emphasized."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    marked: frozenset[int] = field(default_factory=frozenset)

    def markup(self, place: Place) -> Markup:
        head = [element("th", column, scope="col") for column in self.columns[:_MOST_COLUMNS]]
        body = [self._row(index, row) for index, row in enumerate(self.rows[:MOST_ROWS])]
        left = [f"{len(self.rows) - MOST_ROWS} more rows"] if len(self.rows) > MOST_ROWS else []
        left += [f"{len(self.columns) - _MOST_COLUMNS} more columns"] if len(self.columns) > _MOST_COLUMNS else []
        caption = f"{self.caption} (not shown: {' and '.join(left)})" if left else self.caption
        table = element(
            "table",
            element("caption", caption),
            element("thead", element("tr", *head)),
            element("tbody", *body),
        )
        # It scrolls where it is too wide, so it has to be reached by keyboard.
        return element("div", table, class_="table", tabindex=0, role="region", aria_label=self.caption)

    def _row(self, index: int, row: Sequence[Cell]) -> Markup:
        cells = [_cell(value, is_first=place == 0) for place, value in enumerate(row[:_MOST_COLUMNS])]
        return element("tr", *cells, class_="marked" if index in self.marked else None)


def _cell(value: Cell, *, is_first: bool) -> Markup:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    shown = shortened(cell_text(value), _MOST_CHARACTERS)
    kind = "number" if is_number else None
    return element("th", shown, scope="row", class_=kind) if is_first else element("td", shown, class_=kind)


def cell_text(value: Cell) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case int():
            return f"{value:,}"
        case float():
            return number(value)
