"""Stacked bars, such as the shares of stages in latency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trioton.report.figure import COLOURS, RIGHT, WIDTH, Look, figure, text_at, tick_below
from trioton.report.markup import Markup, element, shortened
from trioton.report.numbers import coordinate, number
from trioton.report.place import Place
from trioton.report.tables import Cell, Table
from trioton.report.ticks import Axis, Scale, scale_of

MOST_BARS = 40
_NAMES, _ROW, _BAR, _TOP, _BOTTOM = 190, 30, 18, 8, 46
_NAME_CHARACTERS = 28


@dataclass(frozen=True, slots=True)
class Bar:
    """A value for each part."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class StackedBars:
    """A horizontal bar for each row, of parts one after the other; with `as_shares` all have the same length."""

    title: str
    axis: Axis
    parts: Sequence[str]
    bars: Sequence[Bar]
    description: str = ""
    as_shares: bool = False

    def markup(self, place: Place) -> Markup:
        shown = self.bars[:MOST_BARS]
        lengths = [[self._length(bar, value) for value in bar.values[: len(self.parts)]] for bar in shown]
        longest = [100.0] if self.as_shares else [sum(parts) for parts in lengths]
        axis = Axis("share", "%", from_zero=True) if self.as_shares else self.axis
        scale = scale_of(Axis(axis.label, axis.unit, from_zero=True), [0.0, *longest], _NAMES, WIDTH - RIGHT)
        height = _TOP + _ROW * len(shown) + _BOTTOM
        drawing = list(_grid(axis, scale, height))
        for row, (bar, parts) in enumerate(zip(shown, lengths, strict=True)):
            drawing += self._bar(row, bar, parts, scale)
        legend = [Look(index).key(part, is_area=True) for index, part in enumerate(self.parts)]
        description = self.description
        if len(self.bars) > MOST_BARS:
            description += f" The first {MOST_BARS} of {len(self.bars)} are drawn."
        return figure(place, self.title, description, drawing, table=self._table(), legend=legend, height=height)

    def _length(self, bar: Bar, value: float) -> float:
        if not math.isfinite(value) or value <= 0:
            return 0.0
        whole = math.fsum(each for each in bar.values if math.isfinite(each) and each > 0)
        return 100 * value / whole if self.as_shares else value

    def _bar(self, row: int, bar: Bar, parts: Sequence[float], scale: Scale) -> Iterator[Markup]:
        y = _TOP + row * _ROW + (_ROW - _BAR) / 2
        yield text_at(_NAMES - 10, y + 13, shortened(bar.name, _NAME_CHARACTERS), class_="tick", text_anchor="end")
        begin = 0.0
        for index, length in enumerate(parts):
            left, right = scale.place(begin), scale.place(begin + length)
            begin += length
            if right > left:
                unit = f" {self.axis.unit}" if self.axis.unit else ""
                title = f"{bar.name}, {self.parts[index]}: {number(bar.values[index])}{unit}"
                yield element(
                    "rect",
                    element("title", title),
                    x=coordinate(left),
                    y=coordinate(y),
                    width=coordinate(right - left),
                    height=_BAR,
                    class_=f"area s{index % COLOURS}",
                )

    def _table(self) -> Table:
        rows: list[list[Cell]] = [[bar.name, *(float(value) for value in bar.values)] for bar in self.bars]
        unit = f" ({self.axis.unit})" if self.axis.unit else ""
        return Table(self.title, ["name", *(f"{part}{unit}" for part in self.parts)], rows)


def _grid(axis: Axis, scale: Scale, height: int) -> Iterator[Markup]:
    bottom = height - _BOTTOM
    for tick in scale.ticks():
        x = coordinate(scale.place(tick))
        yield element("line", x1=x, x2=x, y1=_TOP, y2=bottom, class_="grid")
        yield tick_below(scale.place(tick), bottom + 16, number(tick))
    yield text_at((_NAMES + WIDTH - RIGHT) / 2, height - 8, axis.title, class_="axis", text_anchor="middle")
