"""`ModelConfig` as JSON: the config endpoint's output, and the input of load overrides and `auto_complete_config`.

Out: snake_case names, every scalar printed, enums as names, unset messages left out. In: protobuf's JSON mapping (also
camelCase names and 64-bit integers as strings), enum names in any case, unknown fields refused. Source: Triton's model
configuration extension.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from protocol.errors import InvalidArgument
from repository.long_texts import LongTexts
from repository.model_config import ModelConfig
from repository.protobuf_form import config_from_message, new_message, set_fields
from repository.schema_names import nearest_field

Path: TypeAlias = tuple[str, ...]

OVERRIDE_ERROR = "Invalid config override"

# 64-bit integers are JSON numbers, but for these, which Triton leaves as protobuf's JSON mapping has them: strings.
# `*` stands for any key of a map.
_INTEGERS_AS_STRINGS: frozenset[Path] = frozenset(
    {
        ("sequence_batching", "state", "initial_state", "dims"),
        ("instance_group", "secondary_devices", "device_id"),
        ("optimization", "cuda", "graph_spec", "input", "*", "dim"),
        ("optimization", "cuda", "graph_spec", "graph_lower_bound", "input", "*", "dim"),
    }
)


def to_json_form(config: ModelConfig) -> dict[str, Any]:
    """The configuration as JSON-ready dictionaries and lists, in the shape of Triton's config endpoint."""
    fields = set_fields(config)
    for path in _INTEGERS_AS_STRINGS:
        _stringify(fields, path)
    return fields


def from_json_form(text: str | bytes, *, what: str = OVERRIDE_ERROR) -> ModelConfig:
    """Read a configuration from JSON text.

    Args:
        what: the words that open the error's text.

    Raises:
        InvalidArgument: `<what>: <reason>` for broken JSON, an unknown field (with its path) or a wrong value.
    """
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise InvalidArgument(f"{what}: {exc}") from None
    except RecursionError:
        raise InvalidArgument(f"{what}: nested too deeply") from None
    if not isinstance(data, dict):
        raise InvalidArgument(f"{what}: expected a JSON object, got {_json_type(data)}")
    message, texts = new_message(), LongTexts()
    try:
        json_format.ParseDict(_prepare(data, cast(Descriptor, message.DESCRIPTOR), "", texts), message)
        return config_from_message(message, texts)
    except json_format.ParseError as exc:
        raise InvalidArgument(f"{what}: {str(exc).rstrip('.')}") from None
    except InvalidArgument as exc:
        raise InvalidArgument(f"{what}: {exc.message}") from None


def _stringify(value: Any, path: Path) -> None:
    """Turn the integers at `path` under `value` into strings, in place."""
    if isinstance(value, list):
        for item in value:
            _stringify(item, path)
        return
    name, *rest = path
    for key in list(value) if name == "*" else [name] if name in value else []:
        if rest:
            _stringify(value[key], tuple(rest))
        elif isinstance(value[key], list):
            value[key] = [str(item) for item in value[key]]
        else:
            value[key] = str(value[key])


def _prepare(data: Any, descriptor: Descriptor, path: str, texts: LongTexts) -> dict[str, Any]:
    """The same JSON object with fields by their proto names, enum names in upper case, and long texts left out.

    Raises InvalidArgument for what is no object or not in the schema, naming its path; values are left to protobuf.
    """
    if not isinstance(data, dict):
        raise InvalidArgument(f"expected an object at '{path}', got {_json_type(data)}")
    prepared: dict[str, Any] = {}
    for key, value in data.items():
        where = f"{path}.{key}" if path else key
        field = descriptor.fields_by_name.get(key) or descriptor.fields_by_camelcase_name.get(key)
        if field is None:
            near = nearest_field(descriptor.full_name, key)
            hint = f"; did you mean '{near}'?" if near else ""
            raise InvalidArgument(f"unknown field '{where}'{hint}")
        if field.name in prepared:
            raise InvalidArgument(f"field '{where}' is given twice")
        prepared[field.name] = _prepare_field(value, field, where, texts)
    return prepared


def _prepare_field(value: Any, field: FieldDescriptor, path: str, texts: LongTexts) -> Any:
    message = field.message_type
    if value is None:  # JSON's way to leave a field unset
        return None
    if message is not None and message.GetOptions().map_entry:
        if not isinstance(value, dict):
            raise InvalidArgument(f"expected an object at '{path}', got {_json_type(value)}")
        values = message.fields_by_name["value"]
        return {key: _prepare_value(item, values, f"{path}.{key}", texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_prepare_value(item, field, f"{path}[{index}]", texts) for index, item in enumerate(value)]
    return _prepare_value(value, field, path, texts)


def _prepare_value(value: Any, field: FieldDescriptor, path: str, texts: LongTexts) -> Any:
    if field.message_type is not None:
        return _prepare(value, field.message_type, path, texts)
    if field.enum_type is not None and isinstance(value, str):
        return value.upper()
    if field.type == FieldDescriptor.TYPE_STRING and isinstance(value, str):
        return texts.left_out(value)
    return value


def _json_type(data: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(data), "null")
