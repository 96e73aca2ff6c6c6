"""Reads a body of the OpenAI interface as a typed request, or says which field is wrong, and how.

Unknown fields are ignored, as vLLM does; a strict reader refuses them, and answers whatever does not fit as Triton's
frontend does: with status 422 and its sentences.
"""

from __future__ import annotations

import re
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qs

import msgspec

from protocol.errors import InvalidArgument, shown_name
from protocol.http.openai.codec.requests import REFUSED, Refusals
from protocol.http.openai.errors import FieldError, SchemaError
from protocol.messages import Buffer

T = TypeVar("T", bound=msgspec.Struct)

_MOST_QUERY_FIELDS = 32
# Bytes of a body of which a part is told in an error.
_MOST_SHOWN = 1 << 16

_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.+)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`$")
_BOUND = re.compile(r"Expected `(?:int|float)` (<=|>=|<|>) (.+)$")
_LENGTH = re.compile(r"Expected `array` of length >= (\d+)$")
_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`$")
_STEPS = re.compile(r"[^.\[\]]+|\[\d*\]|\[\.\.\.\]")

_BOUND_WORDS = {
    "<=": ("less_than_equal", "less than or equal to"),
    ">=": ("greater_than_equal", "greater than or equal to"),
    "<": ("less_than", "less than"),
    ">": ("greater_than", "greater than"),
}
_TYPE_WORDS = {
    "str": ("string_type", "string"),
    "int": ("int_type", "integer"),
    "float": ("float_type", "number"),
    "bool": ("bool_type", "boolean"),
    "array": ("list_type", "list"),
    "object": ("dict_type", "dictionary"),
}


class BodyReader(Generic[T]):
    """Reads one kind of body; `refused` are those of its fields that are, where `REFUSED` does not have the kind."""

    def __init__(self, kind: type[T], refused: Refusals | None = None) -> None:
        self._refused = REFUSED[kind] if refused is None else refused
        self._decoder = msgspec.json.Decoder(kind)
        self._strict: msgspec.json.Decoder[T] = msgspec.json.Decoder(_strict(kind))

    def read(self, body: Buffer, *, strict: bool = False) -> T:
        """Raises:
        InvalidArgument: the body is no JSON object.
        FieldError: a field is wrong, or cannot be honoured; a SchemaError where `strict`.
        """
        try:
            request = (self._strict if strict else self._decoder).decode(body)
        except msgspec.ValidationError as error:
            raise (_schema_error(str(error), body) if strict else _field_error(str(error))) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the body is not JSON: {error}") from None
        except RecursionError:
            raise InvalidArgument("the body is not JSON: it nests too deeply") from None
        self._refuse(request)
        return request

    def _refuse(self, request: T) -> None:
        for name, (allowed, reason) in self._refused.items():
            value = getattr(request, name)
            if value is not None and value not in allowed:
                raise FieldError(f"'{name}' cannot be honoured: {reason}", name, "unsupported_parameter")


def _strict(kind: type[T]) -> type[T]:
    """The same kind of body, without unknown fields, also within its fields."""
    inner: list[tuple[str, Any, Any]] = []
    for each in msgspec.structs.fields(kind):
        made = _strict_type(each.type)
        if made != each.type:
            inner.append((each.name, made, each.default))
    named = f"Strict{kind.__name__}"
    return msgspec.defstruct(named, inner, bases=(kind,), forbid_unknown_fields=True, kw_only=True)  # type: ignore[return-value]


def _strict_type(given: Any) -> Any:
    if isinstance(given, type) and issubclass(given, msgspec.Struct):
        return _strict(given)
    if isinstance(given, UnionType) or get_origin(given) is Union:
        return Union[tuple(map(_strict_type, get_args(given)))]  # noqa: UP007 - of types that are known here only
    if get_origin(given) is list:
        return list[_strict_type(get_args(given)[0])]  # type: ignore[misc]
    return given


def read_query(query: bytes) -> dict[str, str]:
    """The first value of each field of a target's query. Raises FieldError."""
    try:
        found = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_QUERY_FIELDS)
    except ValueError:
        raise FieldError(f"the query has more than {_MOST_QUERY_FIELDS} fields", "query") from None
    return {name: values[0] for name, values in found.items()}


def _parts(text: str) -> tuple[str, str]:
    """The sentence, and the path of the field that it is about."""
    place = _PLACE.search(text)
    sentence = _PLACE.sub("", text)
    path = place[1] if place else ""
    if named := _MISSING.match(sentence) or _UNKNOWN.match(sentence):
        name = shown_name(named[1])
        path = f"{path}.{name}" if path else name
    return sentence, path


def _field_error(text: str) -> FieldError:
    sentence, path = _parts(text)
    if _MISSING.match(sentence):
        return FieldError(f"'{path}': Field required", path, "missing_required_parameter")
    return FieldError(f"'{path}': {sentence}" if path else sentence, path, "invalid_type")


def _schema_error(text: str, body: Buffer) -> SchemaError:
    sentence, path = _parts(text)
    kind, message = _triton_words(sentence)
    steps = [int(step[1:-1]) if step[1:-1].isdigit() else step for step in _STEPS.findall(path)]
    holder = steps[:-1] if kind == "missing" else steps
    detail = {"type": kind, "loc": ["body", *steps], "msg": message, "input": _value_at(body, holder)}
    return SchemaError(f"'{path}': {message}" if path else message, path, [detail])


def _triton_words(sentence: str) -> tuple[str, str]:
    if _MISSING.match(sentence):
        return "missing", "Field required"
    if _UNKNOWN.match(sentence):
        return "extra_forbidden", "Extra inputs are not permitted"
    if bound := _BOUND.match(sentence):
        kind, words = _BOUND_WORDS[bound[1]]
        return kind, f"Input should be {words} {float(bound[2]):g}"
    if length := _LENGTH.match(sentence):
        return "too_short", f"List should have at least {length[1]} item after validation, not 0"
    if (wrong := _TYPE.match(sentence)) and (expected := wrong[1].split(" | ")[0]) in _TYPE_WORDS:
        kind, word = _TYPE_WORDS[expected]
        return kind, f"Input should be a valid {word}"
    return "value_error", sentence


def _value_at(body: Buffer, steps: list[Any]) -> Any:
    """What stands there in the body, as Triton's frontend tells it; None where the body is large, or is no JSON behind
    the place of the first error."""
    try:
        value: Any = msgspec.json.decode(body) if len(body) <= _MOST_SHOWN else None
        for step in steps:
            value = value[step]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, IndexError, TypeError):
        return None
    return value
