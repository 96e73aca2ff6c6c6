"""A report in a real browser, from a file, without a network: what it shows with scripts and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import WINDOW, Browser
from tests.e2e.pages import expect, violations
from tests.trioton.analyze.results import test_results as of_analyze
from tests.trioton.convert import test_page as of_convert
from tests.trioton.perf import test_command as of_perf
from tests.trioton.report.samples import HOSTILE, every_block
from trioton.analyze.results.page import as_page
from trioton.convert.page import page_of
from trioton.perf.html import page as page_of_perf

pytestmark = pytest.mark.slow

OUTSIDE = """s => {
    const a = s.getBoundingClientRect();
    return [...s.querySelectorAll('*')].filter(e => {
        const b = e.getBoundingClientRect();
        return b.width && (b.left < a.left - 1 || b.right > a.right + 1 || b.top < a.top - 1 || b.bottom > a.bottom + 1)
    }).map(e => e.outerHTML)
}"""


@dataclass(frozen=True)
class ToolPage:
    """What a tool writes from figures that are made up, and what of it is to be seen."""

    html: Callable[[], str]
    heading: str
    drawings: tuple[str, ...]
    texts: tuple[str, ...]


def perf_html() -> str:
    loads = [of_perf.some(concurrency) for concurrency in (1, 4)]
    limited = of_perf.some(16, limits=("the sender was late",))
    return page_of_perf(of_perf.report(*loads, limited, marked=loads[1], mark="knee"))


TOOLS = {
    "perf": ToolPage(
        perf_html,
        "trioton perf",
        ("Latency against rate", "Percentiles of the latency", "Where the time goes", "The same as shares"),
        ("The generator was the limit: the sender was late", "4 at a time"),
    ),
    "analyze": ToolPage(
        lambda: as_page(of_analyze.findings(), 20.0).html(),
        "Analysis of model <b>m</b>",
        ("Rate and memory", "Latency by offered rate"),
        ("trioton analyze models --model m", "the data is made up", "instance_group { count: 2 }"),
    ),
    "convert": ToolPage(
        lambda: page_of(of_convert.REPORT).html(),
        "Conversion of net",
        ("Rate and latency (p99)", "Rate and memory"),
        ("chosen: fast, the only one that has passed", "Not passed: wrong, absent", "trioton convert net.onnx models"),
    ),
}


@contextmanager
def opened(browser: Browser, file: Path, **context: Any) -> Iterator[Any]:
    """The file, offline. Asking for anything but it, and errors of whatever kind, fail the test."""
    wrong: list[str] = []
    with browser.in_use() as chromium:
        made = chromium.new_context(viewport=WINDOW, offline=True, **context)
        page = made.new_page()
        page.on("request", lambda request: wrong.extend([] if request.url == file.as_uri() else [request.url]))
        page.on("console", lambda line: wrong.append(line.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(file.as_uri())
        yield page
        made.close()
    assert wrong == []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(every_block().html(), encoding="utf-8")
    return path


@pytest.mark.parametrize("has_scripts", [True, False])
def test_everything_is_seen(browser: Browser, file: Path, has_scripts: bool) -> None:
    with opened(browser, file, java_script_enabled=has_scripts) as page:
        expect(page.get_by_role("heading", name="Report on resnet", exact=True)).to_be_visible()
        for name in ("Latency of resnet", "Rate and memory", "Stages"):
            expect(page.get_by_role("img", name=name)).to_be_visible()
        figure = page.get_by_role("figure", name="Latency of resnet")
        expect(figure.get_by_role("table")).to_have_count(0)  # folded away
        figure.locator("summary").click()
        expect(figure.get_by_role("table")).to_be_visible()
        expect(figure.get_by_role("row")).to_have_count(1 + 19 + 19 + 3)
        expect(page.locator("tr.marked").first).to_contain_text("1,234")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(browser: Browser, file: Path, scheme: Any) -> None:
    with opened(browser, file, color_scheme=scheme) as page:
        for summary in page.locator("summary").all():
            summary.click()
        assert violations(page) == []


def test_light_and_dark_differ(browser: Browser, file: Path) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        with opened(browser, file, color_scheme=scheme) as page:
            seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            seen.add(page.evaluate("getComputedStyle(document.querySelector('figure svg polyline')).stroke"))
    assert len(seen) == 4


def test_lines_have_a_length_and_stay_within_their_drawing(browser: Browser, file: Path) -> None:
    with opened(browser, file) as page:
        lines = page.locator("figure svg[role=img] polyline").all()
        assert len(lines) == 3
        for line in lines:
            assert line.evaluate("each => each.getTotalLength()") > 100
        for drawing in page.locator("figure svg[role=img]").all():
            assert drawing.evaluate(OUTSIDE) == []


def test_names_run_no_script(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(every_block(HOSTILE).html(), encoding="utf-8")
    with opened(browser, path) as page:
        expect(page.locator("h1")).to_contain_text("<script>window.hit=1</script>")
        assert page.evaluate("typeof window.hit") == "undefined"


def test_it_fits_a_small_screen(browser: Browser, file: Path) -> None:
    with opened(browser, file) as page:
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> ToolPage:
    return TOOLS[request.param]


@pytest.fixture
def written(tool: ToolPage, tmp_path: Path) -> Path:
    path = tmp_path / "tool.html"
    path.write_text(tool.html(), encoding="utf-8")
    return path


@pytest.mark.parametrize("has_scripts", [True, False])
def test_the_page_of_a_tool(browser: Browser, tool: ToolPage, written: Path, has_scripts: bool) -> None:
    with opened(browser, written, java_script_enabled=has_scripts) as page:
        expect(page.get_by_role("heading", name=tool.heading, exact=True)).to_be_visible()
        for name in tool.drawings:
            drawing = page.get_by_role("img", name=name, exact=True)
            expect(drawing).to_be_visible()
            assert drawing.evaluate(OUTSIDE) == []
        for text in tool.texts:
            expect(page.get_by_text(text).first).to_be_visible()


def test_the_page_of_a_tool_is_accessible_and_fits_a_small_screen(browser: Browser, written: Path) -> None:
    for scheme in ("light", "dark"):
        with opened(browser, written, color_scheme=scheme) as page:
            for summary in page.locator("summary").all():
                summary.click()
            assert violations(page) == []
            page.set_viewport_size({"width": 360, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
