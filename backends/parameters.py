"""Parsing of the string values in `parameters` and accelerator parameters.

The rules and texts are those of Triton's common backend layer, so that a configuration means the same here.
"""

from __future__ import annotations

import re

from protocol.errors import InvalidArgument

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_INTEGER = re.compile(r"\s*([+-]?\d+)")


def parse_bool(value: str, *, place: str) -> bool:
    """true, on, 1, false, off, 0 in any case. `place` (model and key) opens the error's text.

    Raises:
        InvalidArgument: the text is none of these.
    """
    lowered = value.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise InvalidArgument(f"{place}: failed to convert '{value}' to boolean; expected true, on, 1, false, off or 0")


def parse_int(value: str, *, place: str) -> int:
    """The integer that the text begins with; what follows it is ignored, as C++'s `stoi` does. `place` (model and key)
    opens the error's text.

    Raises:
        InvalidArgument: the text begins with no integer.
    """
    found = _INTEGER.match(value)
    if found is None:
        raise InvalidArgument(f"{place}: failed to convert '{value}' to integral number")
    return int(found[1])
