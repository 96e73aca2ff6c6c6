"""Sections, texts, facts, code and differences."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trioton.report.markup import Markup, element, joined, shortened
from trioton.report.place import Block, Place

_MOST_LINES = 2_000
_MOST_LINE_CHARACTERS = 1_000
_MOST_FACTS = 200


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: Sequence[Block] = ()

    def markup(self, place: Place) -> Markup:
        heading = f"{place.key}-title"
        inner = (block.markup(place.inner(index)) for index, block in enumerate(self.blocks))
        title = element(f"h{place.level}", self.title, id=heading)
        return element("section", title, *inner, aria_labelledby=heading)


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; with `is_warning` one that is not to be overlooked."""

    text: str
    is_warning: bool = False

    def markup(self, place: Place) -> Markup:
        return element("p", self.text, class_="warning" if self.is_warning else None)


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with a value each."""

    facts: Mapping[str, str]

    def markup(self, place: Place) -> Markup:
        shown = list(self.facts.items())[:_MOST_FACTS]
        rows = [element("dt", name) + element("dd", value) for name, value in shown]
        return element("dl", *map(Markup, rows))


@dataclass(frozen=True, slots=True)
class Code:
    """Text of a program or a file, as it is. `label` names it to those who cannot see it."""

    text: str
    label: str

    def markup(self, place: Place) -> Markup:
        return _listing([(None, line) for line in self.text.splitlines()], self.label)


@dataclass(frozen=True, slots=True)
class Diff:
    """Two texts as a unified difference."""

    before: str
    after: str
    before_name: str
    after_name: str

    def lines(self) -> list[str]:
        return unified(self.before, self.after, self.before_name, self.after_name)

    def markup(self, place: Place) -> Markup:
        lines = self.lines()
        if not lines:
            return element("p", f"{self.before_name} and {self.after_name} are the same.")
        kinds = {"+": "added", "-": "removed", "@": "place"}
        marked = [(kinds.get(line[:1]) if index > 1 else "place", line) for index, line in enumerate(lines)]
        return _listing(marked, f"Difference between {self.before_name} and {self.after_name}")


def unified(before: str, after: str, before_name: str, after_name: str) -> list[str]:
    """The lines of a unified difference; none where the texts are the same."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), before_name, after_name, lineterm="")
    return list(lines)


def _listing(lines: Sequence[tuple[str | None, str]], label: str) -> Markup:
    shown = [
        element("span", shortened(line, _MOST_LINE_CHARACTERS), class_=kind)
        if kind
        else shortened(line, _MOST_LINE_CHARACTERS)
        for kind, line in lines[:_MOST_LINES]
    ]
    if len(lines) > _MOST_LINES:
        shown.append(f"… {len(lines) - _MOST_LINES} more lines")
    text = joined(part for line in shown for part in (line, "\n"))
    # It scrolls where it is too wide, so it has to be reached by keyboard.
    return element("pre", element("code", text), tabindex=0, role="region", aria_label=label)
