"""What the site must not do; skipped where MkDocs is not installed (`make docs` installs it)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def hooks(site_module: Callable[[str], Any]) -> Any:
    pytest.importorskip("mkdocs")
    return site_module("hooks")


def test_a_page_that_the_navigation_does_not_name_comes_last(hooks: Any) -> None:
    nav = [{"Start": ["index.md", {"Two": [{"A": "a.md"}]}]}, {"Inside": [{"B": "b.md"}]}]
    assert list(hooks.named_in(nav)) == ["index.md", "a.md", "b.md"]


def test_linked_files_have_pages_and_what_they_link_to(hooks: Any) -> None:
    found = hooks.repository_pages([hooks.DOCS / "backends" / "custom.md"])
    folder = "repository/examples/custom_backend"
    assert {f"{folder}/README.md", f"{folder}/linear_backend.py.md", f"{folder}/models/index.md"} <= found.keys()
    assert not found.keys() & {"index.md", "backends/custom.md"}


@pytest.mark.parametrize(
    ("name", "text", "loads"),
    [
        ("a.html", '<script src="https://unpkg.com/x.js"></script>', "https://unpkg.com/x.js"),
        ("a.html", "<link rel=stylesheet href=//fonts.example/css>", "//fonts.example/css"),
        ("a.css", "@import 'https://fonts.example/css';", "https://fonts.example/css"),
        ("a.css", "b { background: url(https://example.org/b.png) }", "https://example.org/b.png"),
        ("a.html", '<a href="https://example.org">followed by a reader</a><img src="b.png">', None),
        ("a.css", "b { background: url('data:image/svg+xml;x') }", None),
    ],
)
def test_what_would_come_from_the_network_is_a_warning(
    hooks: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str, loads: str | None
) -> None:
    (tmp_path / name).write_text(text)
    with caplog.at_level(logging.WARNING):
        hooks.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
    assert caplog.messages == ([] if loads is None else [f"{name} loads {loads}"])
