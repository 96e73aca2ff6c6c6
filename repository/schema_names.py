"""Suggestions for misspelt names in a configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from protocol.proto import message_class, our_pool

# What other frameworks call the datatypes.
_DATA_TYPES = {
    "FLOAT": "FP32",
    "FLOAT16": "FP16",
    "FLOAT32": "FP32",
    "FLOAT64": "FP64",
    "HALF": "FP16",
    "DOUBLE": "FP64",
    "BFLOAT16": "BF16",
    "INT": "INT32",
    "LONG": "INT64",
    "BYTES": "STRING",
    "BOOLEAN": "BOOL",
}
_DATA_TYPE = "inference.DataType"
_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (\w+)')


def nearest_field(message: str, name: str) -> str | None:
    """The field of a message (`inference.ModelConfig`) whose name is nearest; None where none is near."""
    return _nearest(name, (field.name for field in message_class(message).DESCRIPTOR.fields))


def nearest_value(enum: str, name: str) -> str | None:
    """The same for the values of an enum."""
    if enum == _DATA_TYPE:
        known = _DATA_TYPES.get(name.upper().removeprefix("TYPE_"))
        if known is not None:
            return f"TYPE_{known}"
    return _nearest(name.upper(), (value.name for value in our_pool().FindEnumTypeByName(enum).values))


def meant(parse_error: str) -> tuple[str, str] | None:
    """Of protobuf's text about an unknown field or value: the name that was given, and the nearest one, which is empty
    where none is near. None for any other text."""
    if found := _UNKNOWN_FIELD.search(parse_error):
        return found[2], nearest_field(found[1], found[2]) or ""
    if found := _UNKNOWN_VALUE.search(parse_error):
        return found[2], nearest_value(found[1], found[2]) or ""
    return None


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
