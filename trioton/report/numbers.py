"""Numbers as people read them."""

from __future__ import annotations

import math

_LARGE, _SMALL = 1e7, 1e-3


def number(value: float, digits: int = 4) -> str:
    """With so many significant digits, whole parts whole, and a dash for what is no number."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= _LARGE or size < _SMALL:
        return f"{value:.{digits - 1}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def coordinate(value: float) -> str:
    """A place in a drawing; a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")
