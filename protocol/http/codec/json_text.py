"""JSON parsing and writing, with Triton's error texts, and with `NaN` and infinities.

msgspec reads and checks in one pass. It is strict, but the protocol's JSON also has `NaN`, `Infinity` and
`-Infinity`: where msgspec fails on a text that holds one of these words, the standard library reads it and msgspec
checks the result. Writing is the same the other way round. Source: reference section "Error model".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

import msgspec

from protocol.errors import InvalidArgument
from protocol.messages import Buffer

T = TypeVar("T")

MAX_NESTING = 100
NESTING_TEXT = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"

# By msgspec's name of the expected type. Every integer of these schemas is unsigned.
_WRONG_TYPE = {
    "array": "attempt to access JSON non-array as array",
    "object": "attempt to access JSON non-object as object",
    "str": "attempt to access JSON non-string as string",
    "bool": "attempt to access JSON non-boolean as boolean",
    "int": "attempt to access JSON non-unsigned-integer as unsigned-integer",
    "float": "attempt to access JSON non-number as double",
}
_NOT_UTF8 = "Invalid UTF-8"
_POSITION = re.compile(r" \(byte (\d+)\)$")
_PLACE = re.compile(r" - at `\$\.?(.+)`$")
_MEMBER = re.compile(r"[^.\[\]]+(?=(\[\d*\])*$)")
_MISSING = re.compile(r"Object missing required field `(.+)`$")
_EXPECTED = re.compile(r"Expected `(\w+)[^`]*`(?: >= 0)?(?:, got `(.+)`)?$")
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


# Of what opens levels in JSON, in regular expressions and grammars, and of escapes that may stand for it: a text with
# fewer of each lets no code run out of stack.
_LEAST_NESTING = 100
_OPENING = (b"[", b"{", b"(", b"\\u00")


def may_nest(text: Buffer) -> bool:
    """Whether a text may nest so deeply that a RecursionError is its writer's mistake, no defect of its reader."""
    raw = bytes(text)
    return any(raw.count(opening) >= _LEAST_NESTING for opening in _OPENING)


class JsonReader(Generic[T]):
    """Reads one type from JSON text."""

    def __init__(self, type_: type[T]) -> None:
        self._type = type_
        self._decoder = msgspec.json.Decoder(type_)

    def read(self, text: Buffer, place: Callable[[int], int] = int) -> T:
        """`place` makes a position in this text one to be told.

        Raises:
            InvalidArgument: the text is no JSON, nests too deeply, or does not fit the type.
        """
        if not text:
            _refuse_syntax("The document is empty", 0)
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError as exc:
            _refuse_type(exc)
        except msgspec.DecodeError as exc:
            raw = bytes(text)
            if b"NaN" in raw or b"Infinity" in raw:
                return self._read_leniently(raw)
            if str(exc).startswith(_NOT_UTF8):  # of msgspec 0.23 and later; a UnicodeDecodeError of others
                _refuse_bytes(raw)
            position = _POSITION.search(str(exc))
            reason = _POSITION.sub("", str(exc)).removeprefix("JSON is malformed: ")
            _refuse_syntax(reason, place(int(position[1]) if position else len(raw)))
        except UnicodeDecodeError:
            _refuse_bytes(bytes(text))
        except RecursionError:
            raise InvalidArgument(NESTING_TEXT) from None

    def _read_leniently(self, raw: bytes) -> T:
        try:
            value = json.loads(raw.decode())
            if SURROGATE_ESCAPE.search(raw):
                json.dumps(value, ensure_ascii=False).encode()  # a lone half has no UTF-8 form
            return msgspec.convert(value, self._type)
        except json.JSONDecodeError as exc:
            _refuse_syntax(exc.msg, exc.pos)
        except msgspec.ValidationError as exc:
            _refuse_type(exc)
        except UnicodeDecodeError as exc:
            _refuse_syntax(f"not valid UTF-8 ({exc.reason})", exc.start)
        except UnicodeEncodeError:
            raise InvalidArgument(
                "failed to parse the request JSON buffer: a string holds half of a surrogate pair"
            ) from None
        except ValueError as exc:  # an integer of thousands of digits
            raise InvalidArgument(f"failed to parse the request JSON buffer: {exc}") from None
        except RecursionError:
            raise InvalidArgument(NESTING_TEXT) from None


def _refuse_syntax(reason: str, offset: int) -> NoReturn:
    raise InvalidArgument(f"failed to parse the request JSON buffer: {reason} at {offset}") from None


def _refuse_bytes(raw: bytes) -> NoReturn:
    """Refuse a text with a string that is not UTF-8."""
    reason = ""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        reason = f" ({error.reason})"
    raise InvalidArgument(f"failed to parse the request JSON buffer: a string is not valid UTF-8{reason}") from None


def _refuse_type(error: msgspec.ValidationError) -> NoReturn:
    """Put msgspec's sentence into Triton's words: the member, what was expected; then what was found, and where."""
    text = str(error)
    place = _PLACE.search(text)
    path = place[1] if place else ""
    sentence = _PLACE.sub("", text)
    if missing := _MISSING.match(sentence):
        where = f" in {path}" if path else ""
        raise InvalidArgument(
            f"Unable to parse '{missing[1]}': attempt to access non-existing object member '{missing[1]}'{where}"
        ) from None
    expected = _EXPECTED.match(sentence)
    if expected and expected[1] in _WRONG_TYPE:
        sentence = _WRONG_TYPE[expected[1]] + (f", got {expected[2]}" if expected[2] else "")
    member = _MEMBER.search(path)
    context = f"Unable to parse '{member[0]}'" if member else "Unable to parse the request JSON"
    where = f" at {path}" if member and path != member[0] else ""
    raise InvalidArgument(f"{context}: {sentence}{where}") from None


def write_non_finite(value: object) -> msgspec.Raw:
    """The JSON text of a value that holds floats JSON has no word for: `NaN`, `Infinity`, `-Infinity`."""
    return msgspec.Raw(json.dumps(value, separators=(",", ":")).encode())
