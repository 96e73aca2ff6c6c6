"""HTML and SVG elements as text in which everything foreign is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# What a document may not hold even escaped: control characters but tab and line feed, and halves of surrogate pairs.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Elements without content, which have no end tag in HTML.
_VOID = frozenset({"meta", "br", "hr"})
_MOST_CHARACTERS = 20_000


class Markup(str):
    """Text that is markup already, and is not escaped again."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """An element. Children that are no `Markup` are escaped, as are all values of attributes; of an attribute's name a
    trailing underscore is removed and others become hyphens, None leaves it out."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escaped(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if name in _VOID else f"{start}{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escaped(part) for part in parts))


def escaped(text: str) -> Markup:
    """Safe between tags and within a quoted attribute, and no longer than a page can show."""
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", shortened(text, _MOST_CHARACTERS)), quote=True))


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
