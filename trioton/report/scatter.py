"""Scatter plots with a Pareto front, such as rate against memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trioton.report.figure import (
    BOTTOM,
    HEIGHT,
    LEFT,
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
from trioton.report.numbers import number
from trioton.report.pareto import Goal, pareto_front
from trioton.report.place import Place
from trioton.report.tables import Table
from trioton.report.ticks import Axis, Scale, scale_of

MOST_DOTS = 1_000
# Others would overlap; a dot says its name on its own, and the table has all.
_MOST_NAMES = 12


@dataclass(frozen=True, slots=True)
class Dot:
    """`is_chosen` marks the one that a report is about."""

    name: str
    x: float
    y: float
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class ScatterPlot:
    """With `goals`, one for each axis, the dots that no other beats are joined by a line."""

    title: str
    x: Axis
    y: Axis
    dots: Sequence[Dot]
    goals: tuple[Goal, Goal] | None = None
    description: str = ""

    def markup(self, place: Place) -> Markup:
        shown = [dot for dot in self.dots if self.x.can_show(dot.x) and self.y.can_show(dot.y)][:MOST_DOTS]
        across = scale_of(self.x, (dot.x for dot in shown), LEFT, WIDTH - RIGHT)
        up = scale_of(self.y, (dot.y for dot in shown), HEIGHT - BOTTOM, TOP)
        front = [] if self.goals is None else pareto_front([(dot.x, dot.y) for dot in shown], self.goals)
        drawing = [horizontal_axis(self.x, across), vertical_axis(self.y, up)]
        if self.goals is not None and len(front) > 1:
            corners = path_of(list(_steps([shown[index] for index in front], self.goals, across, up)))
            drawing.append(element("polyline", points=corners, class_="front", fill="none"))
        drawing += [mark for index, dot in enumerate(shown) for mark in _mark(dot, index in front, across, up)]
        named = [dot for index, dot in enumerate(shown) if index in front or dot.is_chosen][:_MOST_NAMES]
        drawing += [_name(dot, across, up) for dot in named]
        return figure(
            place, self.title, self.description, drawing, table=self._table(), legend=self._legend(shown, front)
        )

    def _legend(self, shown: Sequence[Dot], front: Sequence[int]) -> list[Markup]:
        keys = {_CHOSEN: "chosen", _FRONT: "Pareto front", _OTHER: "others"}
        used = {_look(dot, index in front) for index, dot in enumerate(shown)}
        return [look.key(label) for look, label in keys.items() if look in used]

    def _table(self) -> Table:
        front = [] if self.goals is None else pareto_front([(dot.x, dot.y) for dot in self.dots], self.goals)
        columns = ["name", self.x.title, self.y.title, *(("on the front",) if self.goals else ())]
        rows = [
            [dot.name, float(dot.x), float(dot.y), *((index in front,) if self.goals else ())]
            for index, dot in enumerate(self.dots)
        ]
        return Table(self.title, columns, rows, frozenset(i for i, dot in enumerate(self.dots) if dot.is_chosen))


_FRONT, _CHOSEN, _OTHER = Look(0), Look(1), Look(3)


def _look(dot: Dot, is_front: bool) -> Look:
    return _CHOSEN if dot.is_chosen else _FRONT if is_front else _OTHER


def _mark(dot: Dot, is_front: bool, across: Scale, up: Scale) -> Iterator[Markup]:
    title = f"{dot.name}: {number(dot.x)}, {number(dot.y)}"
    yield _look(dot, is_front).mark(across.place(dot.x), up.place(dot.y), title, is_large=dot.is_chosen)


def _name(dot: Dot, across: Scale, up: Scale) -> Markup:
    x, y = across.place(dot.x), up.place(dot.y)
    is_right = x > (LEFT + WIDTH - RIGHT) / 2
    anchor = "end" if is_right else "start"
    return text_at(
        x + (-11 if is_right else 11), max(y - 8, TOP + 10), dot.name[:40], class_="tick", text_anchor=anchor
    )


def _steps(front: Sequence[Dot], goals: tuple[Goal, Goal], across: Scale, up: Scale) -> Iterator[tuple[float, float]]:
    """Between two dots of the front nothing is better than both: the line runs over what both are better than."""
    for dot, following in zip(front, [*front[1:], None], strict=True):
        yield across.place(dot.x), up.place(dot.y)
        if following is not None:
            corner = (following.x, dot.y) if goals[0] is Goal.LOWER else (dot.x, following.y)
            yield across.place(corner[0]), up.place(corner[1])
