"""Line plots with bands, such as latency against rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trioton.report.figure import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_SERIES,
    RIGHT,
    TOP,
    WIDTH,
    Look,
    figure,
    horizontal_axis,
    path_of,
    text_at,
    vertical_axis,
)
from trioton.report.markup import Markup, element
from trioton.report.numbers import coordinate, number
from trioton.report.place import Place
from trioton.report.tables import Cell, Table
from trioton.report.ticks import Axis, Scale, scale_of

MOST_SAMPLES = 1_000
# With more the marks would hide the line.
_MOST_MARKS = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """A point of a line; `low` and `high` are the ends of its band, where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    @property
    def is_banded(self) -> bool:
        return self.low is not None and self.high is not None


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Limit:
    """A value across the plot, such as a bound of latency; along the vertical axis, or along the horizontal one."""

    name: str
    value: float
    is_vertical: bool = False


@dataclass(frozen=True, slots=True)
class LinePlot:
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    description: str = ""
    limits: Sequence[Limit] = ()

    def markup(self, place: Place) -> Markup:
        shown = [Line(line.name, self._shown(line)) for line in self.lines[:MOST_SERIES]]
        across, up = self._scales(shown)
        drawing = [horizontal_axis(self.x, across), vertical_axis(self.y, up)]
        drawing += [_band(line, Look(index), across, up) for index, line in enumerate(shown)]
        drawing += [mark for limit in self.limits for mark in self._limit(limit, across, up)]
        drawing += [mark for index, line in enumerate(shown) for mark in _curve(line, Look(index), across, up)]
        legend = [Look(index).key(line.name) for index, line in enumerate(shown)]
        description = self.description
        if len(self.lines) > MOST_SERIES:
            description += f" The first {MOST_SERIES} of {len(self.lines)} are drawn."
        return figure(place, self.title, description, drawing, table=self._table(), legend=legend)

    def _shown(self, line: Line) -> list[Sample]:
        good = [sample for sample in line.samples if self.x.can_show(sample.x) and self.y.can_show(sample.y)]
        step = -(-len(good) // MOST_SAMPLES) or 1
        kept = good[::step]
        return kept if not good or kept[-1] is good[-1] else [*kept, good[-1]]

    def _scales(self, lines: Sequence[Line]) -> tuple[Scale, Scale]:
        samples = [sample for line in lines for sample in line.samples]
        xs = [*(sample.x for sample in samples), *(each.value for each in self.limits if each.is_vertical)]
        ys = [sample.y for sample in samples]
        ys += [end for sample in samples for end in (sample.low, sample.high) if end is not None]
        ys += [each.value for each in self.limits if not each.is_vertical]
        across = scale_of(self.x, xs, LEFT, WIDTH - RIGHT)
        return across, scale_of(self.y, ys, HEIGHT - BOTTOM, TOP)

    def _limit(self, limit: Limit, across: Scale, up: Scale) -> Iterator[Markup]:
        if not (self.x if limit.is_vertical else self.y).can_show(limit.value):
            return
        if limit.is_vertical:
            x = coordinate(across.place(limit.value))
            yield element("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="limit")
            yield text_at(across.place(limit.value) - 6, TOP + 12, limit.name, class_="tick", text_anchor="end")
        else:
            y = coordinate(up.place(limit.value))
            yield element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="limit")
            yield text_at(LEFT + 6, up.place(limit.value) - 5, limit.name, class_="tick")

    def _table(self) -> Table:
        is_banded = any(sample.is_banded for line in self.lines for sample in line.samples)
        columns = ["line", self.x.title, self.y.title, *(("from", "to") if is_banded else ())]
        rows: list[list[Cell]] = []
        for line in self.lines:
            for sample in line.samples:
                row: list[Cell] = [line.name, float(sample.x), float(sample.y)]
                rows.append([*row, sample.low, sample.high] if is_banded else row)
        return Table(self.title, columns, rows)


def _curve(line: Line, look: Look, across: Scale, up: Scale) -> Iterator[Markup]:
    places = [(across.place(sample.x), up.place(sample.y)) for sample in line.samples]
    if len(places) > 1:
        yield element(
            "polyline", points=path_of(places), class_=f"line {look.colour}", stroke_dasharray=look.dash, fill="none"
        )
    if len(places) <= _MOST_MARKS:
        for sample, (x, y) in zip(line.samples, places, strict=True):
            yield look.mark(x, y, f"{line.name}: {number(sample.x)}, {number(sample.y)}")


def _band(line: Line, look: Look, across: Scale, up: Scale) -> Markup:
    lows, highs = [], []
    for sample in line.samples:
        low, high = sample.low, sample.high
        if low is not None and high is not None and low <= high and (not up.is_log or low > 0):
            lows.append((across.place(sample.x), up.place(low)))
            highs.append((across.place(sample.x), up.place(high)))
    if len(lows) < 2:
        ends = [(*low, high[1]) for low, high in zip(lows, highs, strict=True)]
        bars = [
            element("line", x1=coordinate(x), x2=coordinate(x), y1=coordinate(y), y2=coordinate(top), class_="whisker")
            for x, y, top in ends
        ]
        return Markup("".join(bars))
    return element("polygon", points=path_of([*lows, *reversed(highs)]), class_=f"band {look.colour}")
