"""Values of perf_analyzer's options. All raise ValueError with what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from protocol.messages import ParameterValue


def whole(text: str, least: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("Expected a whole number") from None
    if least is not None and value < least:
        raise ValueError(f"The value must be >= {least}")
    return value


def number(text: str, least: float | None = None) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("Expected a number")
    if least is not None and value < least:
        raise ValueError(f"The value must be >= {least:g}")
    return value


def positive(text: str) -> int:
    value = whole(text)
    if value <= 0:
        raise ValueError("The value must be > 0")
    return value


def choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"The available options are {_listed(words)}")
        return text

    return read


def boolean_word(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("Expected true or false")
    return text.lower() == "true"


def parameter(text: str) -> tuple[str, ParameterValue]:
    """`<name>:<value>:<type>`, of which the value may have colons."""
    name, colon, rest = text.partition(":")
    value, second, kind = rest.rpartition(":")
    if not colon or not second or not name:
        raise ValueError("The value does not match <name:value:type>")
    match kind.lower():
        case "string":
            return name, value
        case "int":
            return name, whole(value)
        case "bool":
            return name, boolean_word(value)
        case _:
            raise ValueError("The type must be one of bool, int and string")


def _listed(words: Iterable[str]) -> str:
    return " or ".join(f"'{word}'" for word in words)
