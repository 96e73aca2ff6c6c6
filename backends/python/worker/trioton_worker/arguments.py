"""Argument conversion with pybind11's rules, which Triton's Python backend classes follow.

Text may be str or UTF-8 bytes, an integer whatever `int()` takes but floats and text, a sequence no text. A model that
runs here must run there, so nothing else is taken. Each function raises TypeError with the argument's name.
"""

from __future__ import annotations

import operator
from typing import Any, Sequence

UINT32 = (0, (1 << 32) - 1)
UINT64 = (0, (1 << 64) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)


# Stands for an argument that is left out, where None is not taken.
DEFAULT: Any = object()


def to_text(value: object, name: str) -> str:
    """The text of a str or of bytes; bytes that are no UTF-8 get replacement characters, since no protocol has them."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass its content, not what it prints as
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    raise TypeError(f"{name} must be str or bytes, found type {type(value)}")


def to_integer(value: Any, name: str, bounds: tuple[int, int]) -> int:
    """An integer within the bounds; of numbers that are no Python float the integral part."""
    kind = type(value)
    if kind is not int:
        if isinstance(value, float) or not (hasattr(kind, "__index__") or hasattr(kind, "__int__")):
            raise TypeError(f"{name} must be an integer, found type {kind}")
        value = _as_integer(value, name)
    if not bounds[0] <= value <= bounds[1]:
        raise TypeError(f"{name} must be from {bounds[0]} to {bounds[1]}, got {value}")
    return int(value)


def _as_integer(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be an integer, found type {type(value)}") from None


def to_float(value: Any, name: str) -> float:
    """A number as a float."""
    kind = type(value)
    if not (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
        raise TypeError(f"{name} must be a number, found type {kind}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a number, found {value!a}") from None


def to_bool(value: Any, name: str) -> bool:
    """The truth of what has one by itself: numbers, but neither text nor sequences, nor None."""
    if value is True or value is False:
        return bool(value)
    if not hasattr(type(value), "__bool__") or value is None:
        raise TypeError(f"{name} must be bool, found type {type(value)}")
    return bool(value)


def to_sequence(value: Any, name: str, of: str) -> Sequence[Any]:
    """The elements of a list, a tuple, an array or any other sequence that is no text."""
    if isinstance(value, (list, tuple)):
        return value
    is_text = isinstance(value, (str, bytes))
    is_mapping = isinstance(value, dict)
    if is_text or is_mapping or not hasattr(type(value), "__getitem__") or not hasattr(type(value), "__len__"):
        raise TypeError(f"{name} must be a sequence of {of}, found type {type(value)}")
    return [value[index] for index in range(len(value))]
