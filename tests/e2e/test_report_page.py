"""A report in a real browser, from a file, without a network: what it shows with scripts and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import WINDOW, Browser
from tests.e2e.pages import expect, violations
from tests.trioton.report.samples import HOSTILE, every_block

pytestmark = pytest.mark.slow


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
            outside = drawing.evaluate(
                "s => { const a = s.getBoundingClientRect(); return [...s.querySelectorAll('*')].filter(e => { "
                "const b = e.getBoundingClientRect(); return b.width && (b.left < a.left - 1 || b.right > a.right + 1 "
                "|| b.top < a.top - 1 || b.bottom > a.bottom + 1) }).map(e => e.outerHTML) }"
            )
            assert outside == []


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
