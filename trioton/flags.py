"""Flags as data: one row per flag, and the readers that turn arguments and environment into typed values.

A settings class is a frozen dataclass whose fields are made with `flag`, `repeatable` and `switch`; its field names are
the flags' names with `_` for `-`. `read_arguments` and `read_environment` are pure; `trioton.cli` joins them.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")
V = TypeVar("V")

ENVIRONMENT_PREFIX = "TRIOTON_"
# Between the values of a repeatable flag in the environment: neither paths nor `name,key=value` contain it.
ENVIRONMENT_SEPARATOR = ";"


class UsageError(Exception):
    """The command line, the environment or a settings object asks for what cannot be; the text says what to mend."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One row of the table. `parse` raises ValueError with what was expected; a switch takes no value; what a secret
    one was given is never shown."""

    name: str
    group: str
    help: str
    default: object
    parse: Callable[[str], object]
    metavar: str
    aliases: tuple[str, ...] = ()
    is_repeatable: bool = False
    is_switch: bool = False
    is_secret: bool = False

    @property
    def field_name(self) -> str:
        return self.name.replace("-", "_")

    @property
    def environment_name(self) -> str:
        return ENVIRONMENT_PREFIX + self.field_name.upper()


class FlagHolder(Protocol):
    """A dataclass whose fields are flags."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


def flag(
    default: T, parse: Callable[[str], T], *, group: str, help: str, metavar: str, aliases: Sequence[str] = ()
) -> T:
    """A field that is a flag with one value; the last one given wins."""
    row = {"group": group, "help": help, "parse": parse, "metavar": metavar, "aliases": tuple(aliases)}
    made: T = field(default=default, metadata={"flag": row})
    return made


def repeatable(
    parse: Callable[[str], T],
    *,
    group: str,
    help: str,
    metavar: str,
    aliases: Sequence[str] = (),
    is_secret: bool = False,
) -> tuple[T, ...]:
    """A field that is a flag which may be given several times."""
    row = {"group": group, "help": help, "parse": parse, "metavar": metavar, "aliases": tuple(aliases)}
    more = {"is_repeatable": True, "is_secret": is_secret}
    made: tuple[T, ...] = field(default=(), metadata={"flag": {**row, **more}})
    return made


def switch(*, group: str, help: str, aliases: Sequence[str] = ()) -> bool:
    """A field that is a flag without a value: given means true."""
    row = {"group": group, "help": help, "parse": boolean, "metavar": "", "aliases": tuple(aliases)}
    made: bool = field(default=False, metadata={"flag": {**row, "is_switch": True}})
    return made


def rows(holder: type[FlagHolder]) -> tuple[Flag, ...]:
    """The table of a settings class, in the order of its fields."""
    return tuple(
        Flag(name=name.replace("_", "-"), default=made.default, **made.metadata["flag"])
        for name, made in holder.__dataclass_fields__.items()
        if "flag" in made.metadata
    )


def boolean(text: str) -> bool:
    """true, on, 1, false, off, 0 in any letter case."""
    match text.lower():
        case "true" | "on" | "1":
            return True
        case "false" | "off" | "0":
            return False
    raise ValueError("expected true or false (or on, off, 1, 0)")


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if value < minimum or (maximum is not None and value > maximum):
            bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise ValueError(f"expected a whole number {bounds}")
        return value

    return parse


def of_device(make: Callable[[int, V], T], read: Callable[[str], V], expected: str) -> Callable[[str], T]:
    """A reader of `<device>:<value>`. `read` raises ValueError where the value is none; all that is wrong is told
    as what was `expected`."""

    def parse(text: str) -> T:
        device, colon, value = text.partition(":")
        try:
            if not colon or not device.isdecimal():
                raise ValueError
            return make(int(device), read(value))
        except ValueError:
            raise ValueError(expected) from None

    return parse


def seconds(text: str) -> float:
    """A duration, also a part of a second."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("expected a number of seconds of at least 0")
    return value


def choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return text

    return parse


def read_arguments(table: Sequence[Flag], arguments: Sequence[str], unbuilt: Mapping[str, str]) -> dict[str, Any]:
    """Field values from `--name=value` and `--name value`.

    `unbuilt` maps the names of flags that exist elsewhere but not here to what to use in their place ("" for nothing).

    Raises:
        UsageError: an unknown or unbuilt flag, a stray word, a missing or a wrong value.
    """
    by_name = {name: row for row in table for name in (row.name, *row.aliases)}
    values: dict[str, Any] = {}
    words = list(reversed(arguments))
    while words:
        word = words.pop()
        if not word.startswith("--"):
            raise UsageError(f"Unexpected argument: {word}")
        name, equals, value = word[2:].partition("=")
        row = by_name.get(name)
        if row is None:
            raise UsageError(_unknown(name, by_name, unbuilt))
        if row.is_switch:
            if equals:
                raise UsageError(f"--{name} takes no value, got '{value}'")
            values[row.field_name] = True
            continue
        if not equals:
            if not words or words[-1].startswith("--"):
                raise UsageError(f"--{name} needs a value: --{name}={row.metavar}")
            value = words.pop()
        parsed = _parsed(row, value, f"--{name}")
        values[row.field_name] = (*values.get(row.field_name, ()), parsed) if row.is_repeatable else parsed
    return values


def split_words(table: Sequence[Flag], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are no flags, and those that are, with their values."""
    takes_value = {f"--{name}" for row in table if not row.is_switch for name in (row.name, *row.aliases)}
    places: list[str] = []
    flags: list[str] = []
    for word in words:
        is_value = bool(flags) and flags[-1] in takes_value
        (flags if word.startswith("-") or is_value else places).append(word)
    return places, flags


def read_environment(table: Sequence[Flag], environment: Mapping[str, str]) -> dict[str, Any]:
    """Field values from TRIOTON_<FLAG>; the values of a repeatable flag are separated by `;`.

    Other variables with the prefix are not ours to judge: container platforms make such names by themselves.

    Raises:
        UsageError: a wrong value.
    """
    values: dict[str, Any] = {}
    for row in table:
        source = row.environment_name
        text = environment.get(source)
        if text is None:
            continue
        if row.is_repeatable:
            parts = [part.strip() for part in text.split(ENVIRONMENT_SEPARATOR)]
            values[row.field_name] = tuple(_parsed(row, part, source) for part in parts if part)
        else:
            values[row.field_name] = _parsed(row, text, source)
    return values


def _parsed(row: Flag, text: str, source: str) -> object:
    try:
        return row.parse(text)
    except ValueError as exc:
        got = "" if row.is_secret else f", got '{text}'"
        raise UsageError(f"{source}: {exc}{got}") from None


def _unknown(name: str, known: Iterable[str], unbuilt: Mapping[str, str]) -> str:
    if name in unbuilt:
        return f"--{name} is a flag of Triton's that Trioton does not have yet{unbuilt[name]}"
    text = f'Bad option: "--{name}".'
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"{text} Did you mean --{nearest[0]}?" if nearest else text
