"""Figures: a drawing with a name, a description, its axes, a legend and the table of its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trioton.report.markup import Markup, element, shortened
from trioton.report.numbers import coordinate, number
from trioton.report.place import Place
from trioton.report.tables import Table
from trioton.report.ticks import Axis, Scale

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 14, 52
# As many as can be told apart by colour, stroke and mark; a plot's table has the rest.
MOST_SERIES = 12
COLOURS = 6
DASHES = (None, "7 4")
_MOST_LEGEND_CHARACTERS = 60
# Of a tick's label, in the widest of the fonts that a reader may have.
_CHARACTER_WIDTH = 9.0


@dataclass(frozen=True, slots=True)
class Look:
    """How the series of a plot differ: in colour, stroke and the form of marks."""

    index: int

    @property
    def colour(self) -> str:
        return f"s{self.index % COLOURS}"

    @property
    def dash(self) -> str | None:
        return DASHES[self.index // COLOURS % len(DASHES)]

    def mark(self, x: float, y: float, title: str, *, is_large: bool = False) -> Markup:
        """A circle, square, triangle or diamond, which says on its own what it stands for."""
        r = 7.0 if is_large else 4.0
        forms = (
            [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
            [(x, y - 1.2 * r), (x + 1.1 * r, y + 0.8 * r), (x - 1.1 * r, y + 0.8 * r)],
            [(x, y - 1.3 * r), (x + 1.3 * r, y), (x, y + 1.3 * r), (x - 1.3 * r, y)],
        )
        name = element("title", title)
        if self.index % 4 == 0:
            return element(
                "circle", name, cx=coordinate(x), cy=coordinate(y), r=coordinate(r), class_=f"mark {self.colour}"
            )
        return element("polygon", name, points=path_of(forms[self.index % 4 - 1]), class_=f"mark {self.colour}")

    def key(self, label: str, *, is_area: bool = False) -> Markup:
        """A line of the legend."""
        if is_area:
            sample = element("rect", x=6, y=2, width=12, height=12, class_=f"area {self.colour}")
        else:
            line = element("line", x1=0, y1=8, x2=24, y2=8, class_=f"line {self.colour}", stroke_dasharray=self.dash)
            sample = Markup(line + self.mark(12, 8, label))
        drawing = element("svg", sample, viewBox="0 0 24 16", width=24, height=16, aria_hidden="true")
        return element("li", drawing, shortened(label, _MOST_LEGEND_CHARACTERS))


def path_of(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in points)


def text_at(x: float, y: float, text: str, **attributes: object) -> Markup:
    return element("text", text, x=coordinate(x), y=coordinate(y), **attributes)


def tick_below(x: float, y: float, text: str) -> Markup:
    """The label of a tick of a horizontal axis: centred, but where it could reach beyond the drawing."""
    half = len(text) * _CHARACTER_WIDTH / 2
    if x + half > WIDTH:
        return text_at(WIDTH, y, text, class_="tick", text_anchor="end")
    return text_at(x, y, text, class_="tick", text_anchor="middle")


def horizontal_axis(axis: Axis, scale: Scale) -> Markup:
    bottom = HEIGHT - BOTTOM
    parts = []
    for tick in scale.ticks():
        x = scale.place(tick)
        parts.append(element("line", x1=coordinate(x), x2=coordinate(x), y1=TOP, y2=bottom, class_="grid"))
        parts.append(tick_below(x, bottom + 18, number(tick)))
    title = text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, axis.title, class_="axis", text_anchor="middle")
    return Markup("".join((*parts, title)))


def vertical_axis(axis: Axis, scale: Scale) -> Markup:
    parts = []
    for tick in scale.ticks():
        y = scale.place(tick)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=coordinate(y), y2=coordinate(y), class_="grid"))
        parts.append(text_at(LEFT - 8, y + 4, number(tick), class_="tick", text_anchor="end"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f"rotate(-90 14 {coordinate(middle)})"
    title = text_at(14, middle, axis.title, class_="axis", text_anchor="middle", transform=turned)
    return Markup("".join((*parts, title)))


def figure(
    place: Place,
    title: str,
    description: str,
    drawing: Sequence[Markup],
    *,
    table: Table,
    legend: Sequence[Markup] = (),
    height: int = HEIGHT,
) -> Markup:
    """The drawing in a figure, named by its caption, with the table of its data folded away below."""
    name, more, caption = f"{place.key}-t", f"{place.key}-d", f"{place.key}-c"
    described = element("title", title, id=name), element("desc", description or title, id=more)
    svg = element(
        "svg",
        *described,
        *drawing,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby=name,
        aria_describedby=more,
    )
    parts = [element("figcaption", element("strong", title), id=caption), svg]
    if legend:
        parts.append(element("ul", *legend, class_="legend"))
    if description:
        parts.append(element("p", description, class_="note"))
    data = element("details", element("summary", "Data as a table"), table.markup(place.inner(0)))
    return element("figure", *parts, data, aria_labelledby=caption)
