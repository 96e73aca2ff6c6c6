"""Long texts of a JSON text: where those are that are ASCII as they stand, so that nobody need make a string of them.

Pure, and sliced: a parser copies a picture of 30 MB in base64 in one go, and so does whoever cuts or encodes it. What
is found holds as far as the text is JSON: up to a parser's first error.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.sync.sliced import Sliced

# Bytes; a shorter one stays in the text that is parsed in one go.
LONG_ABOVE = 1 << 17
# Less than that, so that the end of a window is in every long text.
_WINDOW = 1 << 15
# What stands for itself in a text of ASCII.
_USUAL = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))


@dataclass(frozen=True, slots=True)
class FoundText:
    """With its quotes."""

    start: int
    end: int


def find_long_texts(
    text: memoryview, *, window_size: int = _WINDOW, long_above: int = LONG_ABOVE
) -> Sliced[list[FoundText]]:
    """In the order of the text. Those with escapes, or with letters that are not ASCII, are left out."""
    found: list[FoundText] = []
    start = 0
    opened = -1  # where the text begins that is open at the window's start
    is_usual = True
    while start < len(text):
        raw = bytes(text[start : start + window_size])
        plain = raw
        if b"\\" in raw:  # so that a quote is one
            plain = raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")
            if plain.endswith(b"\\") and len(plain) > 1:  # it belongs to what follows
                raw, plain = raw[:-1], plain[:-1]
        after = 0
        if opened >= 0:
            end = plain.find(b'"')
            is_usual = is_usual and _is_usual(raw if end < 0 else raw[:end])
            if end >= 0:
                if is_usual and start + end + 1 - opened > long_above:
                    found.append(FoundText(opened, start + end + 1))
                opened, after = -1, end + 1
        if opened < 0 and plain.count(b'"', after) % 2:
            at = plain.rfind(b'"')
            opened, is_usual = start + at, _is_usual(raw[at + 1 :])
        start += len(raw)
        yield
    return found


def _is_usual(text: bytes) -> bool:
    return not text.translate(None, _USUAL)
