"""Sequence diagrams, as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parents[2] / "docs"
CODE = """sequenceDiagram
    participant A as first one
    participant B as second
    A->>B: a <request>
    B->>B: work
    Note over B: rests
    alt all is well
        B-->>A: response
    else gone
        A--xB: nobody
    end
"""


@pytest.fixture
def diagrams(site_module: Callable[[str], Any]) -> Any:
    return site_module("sequence_diagrams")


def texts(svg: ET.Element) -> list[str]:
    return [each.text or "" for each in svg.iter() if each.tag.endswith("text")]


def test_everything_is_drawn(diagrams: Any) -> None:
    svg = ET.fromstring(diagrams.svg_of(CODE))
    assert texts(svg) == [
        *("first one", "second", "a <request>", "work", "rests", "alt all is well", "response", "else gone", "nobody")
    ]
    dashed = [each for each in svg.iter() if "dashed" in each.get("class", "")]
    assert len(dashed) == 2


def test_every_text_has_room(diagrams: Any) -> None:
    svg = ET.fromstring(diagrams.svg_of(CODE.replace("work", "w" * 80)))
    width = float(svg.get("width", "0"))
    places = [float(each.get("x1", "0")) for each in svg.iter() if each.get("class") == "life"]
    assert places[1] - places[0] > len("a <request>") * diagrams.LETTER
    assert width - places[1] > 80 * diagrams.LETTER


def test_what_cannot_be_drawn_is_said(diagrams: Any) -> None:
    with pytest.raises(ValueError, match="cannot be drawn: loop forever"):
        diagrams.svg_of(CODE + "loop forever\n")


def test_all_diagrams_of_the_pages_can_be_drawn(diagrams: Any) -> None:
    found = [
        code for page in PAGES.rglob("*.md") for code in re.findall(r"```mermaid\n(.*?)```", page.read_text(), re.S)
    ]
    assert found
    for code in found:
        ET.fromstring(diagrams.svg_of(code))
