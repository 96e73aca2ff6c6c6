"""The pages for readers, `README.md` and `docs/`, taken apart: names in backticks, links, and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=\S*$")


@dataclass(frozen=True)
class Page:
    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """Without blocks of code."""
        return _FENCE.sub("", self.text)

    @cached_property
    def blocks(self) -> str:
        """The lines of all blocks of code."""
        return "\n".join(block.split("\n", 1)[1].rpartition("\n")[0] for block in _FENCE.findall(self.text))

    @cached_property
    def named(self) -> tuple[str, ...]:
        """What stands between backticks in the prose."""
        return tuple(" ".join(found.split()) for _, found in _CODE.findall(self.prose))

    @cached_property
    def links(self) -> tuple[str, ...]:
        return tuple(_LINK.findall(_CODE.sub("", self.prose)))

    @cached_property
    def anchors(self) -> frozenset[str]:
        """What a link to a heading of this page may say behind its `#`, as GitHub makes it."""
        found: dict[str, int] = {}
        anchors = set()
        for heading in _HEADING.findall(self.prose):
            kept = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
            number = found[kept] = found.get(kept, -1) + 1
            anchors.add(f"{kept}-{number}" if number else kept)
        return frozenset(anchors)

    @cached_property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The words of each line of a block of code and of each backticked text of several words, program first."""
        lines = [*self.blocks.replace("\\\n", " ").splitlines(), *(name for name in self.named if " " in name)]
        return tuple(words for line in lines if (words := tuple(_words(line))))


def _words(line: str) -> Iterator[str]:
    """Without a prompt, variables that are set for the program, and the folder that the program lies in."""
    words = line.partition(" #")[0].removeprefix("$ ").split()
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("sudo", "exec", "nohup", "time")):
        del words[0]
    if words:
        yield words[0].rpartition("/")[2]
        yield from words[1:]


def all_pages() -> tuple[Page, ...]:
    return tuple(map(Page, [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]))
