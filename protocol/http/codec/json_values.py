"""How many values a JSON text holds, counted in slices before a parser makes an object of each in one go.

Pure. What a parser costs is told by the values rather than by the bytes: a picture in base64 is one. A value is counted
by what opens or follows it: a comma, a bracket, a brace. A list or an object counts as four, as it takes a parser as
long as so many numbers. The count holds as far as the text is JSON: up to a parser's first error, where it stops.
"""

from __future__ import annotations

from protocol.sync.sliced import Sliced

_WINDOW = 1 << 15
_OF_LIST = 4


def has_more_values(text: memoryview, most: int) -> Sliced[bool]:
    """Whether there are more than `most` outside of texts. It is read no further than to know."""
    return (yield from count_values(text, most)) > most


def count_values(text: memoryview, most: int, *, window_size: int = _WINDOW) -> Sliced[int]:
    """Those outside of texts; some number of more than `most` where there are more."""
    found = start = 0
    in_text = False
    while start < len(text):
        window = bytes(text[start : start + window_size])
        start += len(window)
        if b"\\" in window:  # so that a quote is one
            window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
            if window.endswith(b"\\") and len(window) > 1:  # it belongs to what follows
                start -= 1
                window = window[:-1]
        if b'"' in window:
            parts = window.split(b'"')
            outside = b" ".join(parts[in_text::2])
            in_text ^= len(parts) % 2 == 0
        else:
            outside = b"" if in_text else window
        found += outside.count(b",") + _OF_LIST * (outside.count(b"[") + outside.count(b"{"))
        if found > most:
            break
        yield
    return found
