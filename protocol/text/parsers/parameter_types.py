"""Types of tool parameters by the request's JSON schemas, for models that write arguments without types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# By the tool's name and the parameter's: the types that its schema names.
ParameterTypes = Mapping[tuple[str, str], frozenset[str]]
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def parameter_types(tools: Sequence[Mapping[str, Any]]) -> ParameterTypes:
    """The types of all parameters of a request's `tools`. What is no schema names no types."""
    found = {}
    for tool in tools:
        function = _mapping(tool, "function")
        for name, schema in _mapping(_mapping(function, "parameters"), "properties").items():
            found[str(function.get("name")), str(name)] = frozenset(_types(schema))
    return found


def is_text(types: frozenset[str]) -> bool:
    """Whether a value is a string, whatever it looks like."""
    return types <= {"string"}


def json_text(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that a model wrote without quotes: by its types, and a string where it is no JSON."""
    value = text.strip()
    value = _PYTHON_WORDS.get(value, value)
    if value == "null" or not ("string" in types or is_text(types)):
        try:
            json.loads(value, parse_constant=_refuse)
            return value
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and its like are no JSON


def _mapping(parent: Any, key: str) -> Mapping[str, Any]:
    found = parent.get(key) if isinstance(parent, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _types(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    types = [each for each in names if isinstance(each, str)] if isinstance(names, list | tuple) else []
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list | tuple) else ():
            types += _types(option)
    return types
