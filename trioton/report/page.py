"""A report as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trioton.report.markup import Markup, element
from trioton.report.place import Block, Place
from trioton.report.style import STYLE

# Nothing is ever loaded, and nothing is run, whatever the page holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of blocks below a title and a first paragraph."""

    title: str
    blocks: Sequence[Block]
    lead: str = ""

    def html(self) -> str:
        """The whole file, to be written as UTF-8."""
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", self.title),
            element("style", Markup(STYLE)),
        )
        lead = [element("p", self.lead)] if self.lead else []
        blocks = [block.markup(Place(f"b{index}")) for index, block in enumerate(self.blocks)]
        body = element("body", element("main", element("h1", self.title), *lead, *blocks))
        return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
