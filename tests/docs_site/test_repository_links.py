"""Links between pages, and from pages to files of the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def links(site_module: Callable[[str], Any]) -> Any:
    return site_module("repository_links")


@pytest.mark.parametrize(
    ("source", "uri", "link", "found"),
    [
        ("README.md", "index.md", "docs/api.md", "api.md"),
        ("README.md", "index.md", "docs/backends/custom.md#errors", "backends/custom.md#errors"),
        ("README.md", "index.md", "CHANGELOG.md", "changelog.md"),
        ("README.md", "index.md", "LICENSE", "repository/LICENSE.md"),
        ("docs/api.md", "api.md", "backends/custom.md", "backends/custom.md"),
        ("docs/backends/custom.md", "backends/custom.md", "../api.md#private", "../api.md#private"),
        ("docs/backends/custom.md", "backends/custom.md", "../../README.md", "../index.md"),
        ("docs/api.md", "api.md", "../examples/tour.py", "repository/examples/tour.py.md"),
        ("docs/api.md", "api.md", "../examples/models", "repository/examples/models/index.md"),
        ("docs/api.md", "api.md", "../examples/custom_backend/", "repository/examples/custom_backend/README.md"),
        ("docs/api.md", "api.md", "backends", "backends/README.md"),
        ("docs/api.md", "api.md", "no_such_page.md", "no_such_page.md"),
        ("docs/api.md", "api.md", "../../elsewhere.md", "../../elsewhere.md"),
        ("docs/api.md", "api.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("docs/api.md", "api.md", "#private", "#private"),
    ],
)
def test_a_link_leads_to_the_page_of_its_file(links: Any, source: str, uri: str, link: str, found: str) -> None:
    assert links.with_links(f"see [this]({link}).", ROOT / source, uri) == f"see [this]({found})."


def test_code_is_left_as_it_is(links: Any) -> None:
    text = "[a](b)\n```python\n[a](b)\n- c\n```\n[a](b)\n"
    assert links.outside_code(text, str.upper) == "[A](B)\n```python\n[a](b)\n- c\n```\n[A](B)\n"


def test_a_list_may_follow_a_paragraph(links: Any) -> None:
    assert links.with_lists("Two:\n- one\n  more\n- two\n\nend") == "Two:\n\n- one\n  more\n- two\n\nend"


def test_a_file_and_a_folder_are_shown(links: Any) -> None:
    assert links.shown(ROOT / "examples" / "tour.py").startswith("# examples/tour.py\n\n`````python\n")
    assert "- `config.pbtxt`\n" in links.shown(ROOT / "examples" / "custom_backend" / "models" / "linear")


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_what_pages_link_to_is_there(links: Any, page: Path) -> None:
    """Without building the site, which says so, too, and of headings as well."""
    missing: list[str] = []

    def look(text: str) -> str:
        targets = [match[1] for match in links.LINK.finditer(text)]
        missing.extend(target for target in targets if not links.resolved(page, target).exists())
        return text

    links.outside_code(page.read_text(), look)
    assert missing == []
