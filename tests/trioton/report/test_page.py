"""A page is well-formed, names its parts, and is bounded."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.trioton.report.samples import HOSTILE, every_block
from trioton.report import (
    Axis,
    Bar,
    Block,
    Code,
    Diff,
    Dot,
    Line,
    LinePlot,
    Page,
    Sample,
    ScatterPlot,
    StackedBars,
    Table,
)

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Structure(HTMLParser):
    """Fails where an element is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def structure(html: str) -> Structure:
    found = Structure()
    found.feed(html)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("name", ["resnet", HOSTILE, "", "模型"])
def test_it_is_well_formed_and_loads_nothing(name: str) -> None:
    html = every_block(name).html()
    found = structure(html)
    tags = {tag for tag, _ in found.seen}
    assert not tags & {"script", "img", "link", "iframe", "object", "image", "use", "a"}
    for _, attributes in found.seen:
        assert not {"src", "href", "xlink:href", "onerror", "onload", "style"} & attributes.keys()
    assert "url(" not in html
    assert "@import" not in html


def test_ids_are_unique_and_every_reference_has_its_element() -> None:
    seen = structure(every_block().html()).seen
    ids = [attributes["id"] for _, attributes in seen if "id" in attributes]
    named = {value for _, each in seen for key, value in each.items() if key in ("aria-labelledby", "aria-describedby")}
    assert len(set(ids)) == len(ids)
    assert named <= set(ids)


def test_every_drawing_is_described_and_has_its_data_in_a_table() -> None:
    html = every_block().html()
    assert html.count('role="img"') == html.count("<figure") == html.count("<desc") == html.count("<details") == 3


def test_sections_nest() -> None:
    assert re.findall(r"<(h\d)", every_block().html()) == ["h1", "h2", "h3", "h2"]


def test_places_are_numbers() -> None:
    """Also where values are none."""
    assert "nan" not in re.sub(r"<t[dh].*?</t[dh]>", "", every_block().html())
    assert not re.search(r'(?:points|x1|cy|width|d)="[^"]*(?:inf|nan)', every_block().html())


def test_great_amounts_are_cut_and_said() -> None:
    many = [Sample(float(i), float(i % 7)) for i in range(20_000)]
    blocks: list[Block] = [
        Table("t", ["a"], [[str(i)] for i in range(10_000)]),
        LinePlot("l", Axis("x"), Axis("y"), [Line(f"line {i}", many) for i in range(30)]),
        ScatterPlot("s", Axis("x"), Axis("y"), [Dot(str(i), i, i) for i in range(20_000)]),
        StackedBars("b", Axis("x"), ["p"], [Bar(str(i), [i]) for i in range(5_000)]),
        Code("line\n" * 50_000, "code"),
        Diff("", "line\n" * 50_000, "a", "b"),
        Table("wide", [str(i) for i in range(900)], [["x" * 100_000] * 900]),
    ]
    html = Page("many", blocks).html()
    assert len(html) < 3_000_000
    assert "9500 more rows" in html
    assert "The first 12 of 30 are drawn." in html
    assert "The first 40 of 5000 are drawn." in html
    assert "48000 more lines" in html
    assert "850 more columns" in html


def test_a_difference_of_equals_says_so() -> None:
    assert "are the same" in Page("p", [Diff("a", "a", "x", "y")]).html()


def test_empty_plots_are_drawn() -> None:
    plots: list[Block] = [
        LinePlot("l", Axis("x"), Axis("y", is_log=True), []),
        ScatterPlot("s", Axis("x"), Axis("y"), []),
        StackedBars("b", Axis("x"), [], []),
    ]
    structure(Page("empty", plots).html())
