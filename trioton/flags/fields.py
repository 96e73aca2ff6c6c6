"""Command-line flags as data: one dataclass field per flag, and parsers from arguments and environment to typed values.

A settings class is a frozen dataclass whose fields are made with `flag`, `repeatable` and `switch`; its field names are
the flags' names with `_` for `-`. `read_words` and `read_environment` are pure; `trioton.cli` joins them.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")
V = TypeVar("V")

ENVIRONMENT_PREFIX = "TRIOTON_"
# Between the values of a repeatable flag in the environment: neither paths nor `name,key=value` contain it.
ENVIRONMENT_SEPARATOR = ";"

# What stands for a value in the help text.
BOOLEAN = "<boolean>"
INTEGER = "<integer>"
PATH = "<path>"
STRING = "<string>"

BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class UsageError(Exception):
    """The command line, the environment or a settings object asks for what cannot be; the text says what to mend."""


class UnknownFlag(UsageError):
    """There is no such flag, or several begin so."""


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
    def is_boolean(self) -> bool:
        return self.parse is boolean

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
    value = BOOLEANS.get(text.lower())
    if value is None:
        raise ValueError("expected true or false (or on, off, 1, 0)")
    return value


def filesystem_path(text: str) -> Path:
    """An empty text would be the working directory, which nobody means (`--model-repository=$UNSET`)."""
    if not text or "\0" in text:
        raise ValueError("expected a path")
    return Path(text)


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


port = integer(0, 65535)


def at_least(minimum: int) -> Callable[[str], int]:
    """A whole number, where Triton takes any, and a smaller one for the smallest."""
    read = integer(-(2**63))
    return lambda text: max(minimum, read(text))


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
    """A duration, also a part of a second; a negative one is none, as for Triton."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("expected a number of seconds")
    return max(0.0, value)


def share(text: str) -> float:
    """A part of a whole."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError("expected a number from 0 to 1")
    return value


def choice(*words: str) -> Callable[[str], str]:
    """One of these words, in any letter case."""
    by_lower_case = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        word = by_lower_case.get(text.lower())
        if word is None:
            raise ValueError(f"expected {' or '.join(words)}")
        return word

    return parse


def read_arguments(table: Sequence[Flag], arguments: Sequence[str]) -> dict[str, Any]:
    """Field values of a command that takes flags only.

    Raises:
        UsageError: see `read_words`; a stray word.
    """
    places, values = read_words(table, arguments)
    if places:
        raise UsageError(f"Unexpected argument: {places[0]}")
    return values


def read_words(table: Sequence[Flag], arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The words that are no flags, and field values from `--name=value` and `--name value`.

    As with getopt_long, which Triton reads its flags with: flags and words come in any order, a name may be cut short
    as long as it stays the only one, and after `--` there are no more flags. Beyond that a Boolean flag without a
    value means true.

    Raises:
        UsageError: an unknown or ambiguous flag, a missing or a wrong value.
    """
    places: list[str] = []
    values: dict[str, Any] = {}
    for row, name, text in _each_word(table, arguments):
        if row is None:
            places.append(text)
        else:
            parsed = parse_value(row, text, f"--{name}")
            values[row.field_name] = (*values.get(row.field_name, ()), parsed) if row.is_repeatable else parsed
    return places, values


def separate_words(table: Sequence[Flag], arguments: Sequence[str]) -> tuple[list[str], list[tuple[Flag, str]]]:
    """As `read_words`, with the flags as they were given, in their order, each with the text of its value.

    Raises:
        UsageError: an unknown or ambiguous flag, or a missing value.
    """
    places: list[str] = []
    given: list[tuple[Flag, str]] = []
    for row, _, text in _each_word(table, arguments):
        if row is None:
            places.append(text)
        else:
            given.append((row, text))
    return places, given


def _each_word(table: Sequence[Flag], arguments: Sequence[str]) -> Iterator[tuple[Flag | None, str, str]]:
    """Flags, each with the name by which it was given and its value; words that are none without a row and a name."""
    by_name = {name: row for row in table for name in (row.name, *row.aliases)}
    words = list(reversed(arguments))
    while words:
        word = words.pop()
        if word == "--":
            yield from ((None, "", each) for each in reversed(words))
            return
        if not word.startswith("-") or word == "-":
            yield None, "", word
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        row = _named(name, by_name, word)
        yield row, name, value if equals else _next_value(row, name, words)


def _next_value(row: Flag, name: str, words: list[str]) -> str:
    """The value of a flag that came without `=`: taken from `words`, the last of which is the next."""
    following = words[-1] if words and not words[-1].startswith("--") else None
    if row.is_switch or (row.is_boolean and (following is None or following.lower() not in BOOLEANS)):
        return "true"
    if following is None:
        raise UsageError(f"--{name} needs a value: --{name}={row.metavar}")
    return words.pop()


def _named(name: str, by_name: Mapping[str, Flag], word: str) -> Flag:
    """The flag of this name, or that whose name begins so and is the beginning of any others that do."""
    if not word.startswith("--"):
        hint = f"; flags begin with two dashes: -{word}" if name[1:] in by_name else ""
        raise UsageError(f"Unexpected argument: {word}{hint}")
    row = by_name.get(name)
    if row is not None:
        return row
    longer = sorted(each for each in by_name if name and each.startswith(name))
    # The first begins all the others where it can: --model-repo is no --model-repository-cache-dir.
    if longer and all(each.startswith(longer[0]) or by_name[each] is by_name[longer[0]] for each in longer):
        return by_name[longer[0]]
    raise UnknownFlag(_unknown(name, longer, by_name))


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
            values[row.field_name] = tuple(parse_value(row, part, source) for part in parts if part)
        else:
            values[row.field_name] = parse_value(row, text, source)
    return values


def parse_value(row: Flag, text: str, source: str) -> object:
    """The value of a flag; `source` says where its text comes from.

    Raises:
        UsageError: a wrong one; that of a secret is not shown.
    """
    try:
        return row.parse(text)
    except ValueError as exc:
        got = "" if row.is_secret else f", got '{text}'"
        raise UsageError(f"{source}: {exc}{got}") from None


def _unknown(name: str, longer: Sequence[str], known: Iterable[str]) -> str:
    text = f'Bad option: "--{name}".'
    if longer:
        return f"{text} It may be short for {' or '.join(f'--{each}' for each in longer)}"
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"{text} Did you mean --{nearest[0]}?" if nearest else text
