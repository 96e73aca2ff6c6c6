"""Blocks, of which a page consists, and the place that each has there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trioton.report.markup import Markup

_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Place:
    """`key` is part of the ids of all elements of the block, `level` that of the headings in it."""

    key: str
    level: int = 2

    def inner(self, index: int) -> Place:
        return Place(f"{self.key}-{index}", min(self.level + 1, _DEEPEST))


class Block(Protocol):
    def markup(self, place: Place) -> Markup: ...
