"""The typed `ModelConfig` of `repository` has exactly the fields of the schema, message by message."""

from __future__ import annotations

import enum
import types
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from protocol.proto import message_class
from repository.model_config import ModelConfig

INTEGERS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
}
SCALARS: dict[int, type] = {
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_FLOAT: float,
    FieldDescriptor.TYPE_DOUBLE: float,
    **dict.fromkeys(INTEGERS, int),
}


def without_none(hint: Any) -> tuple[Any, bool]:
    """The hint without `| None`, and whether it had one."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [argument for argument in get_args(hint) if argument is not type(None)]
        assert len(rest) == 1
        return rest[0], True
    return hint, False


def compare(struct: type[msgspec.Struct], message: Descriptor, seen: dict[str, type]) -> None:
    """Check one message and all that it refers to; `seen` collects what was checked."""
    if message.full_name in seen:
        assert seen[message.full_name] is struct
        return
    seen[message.full_name] = struct
    fields = {info.encode_name: info.name for info in msgspec.structs.fields(struct)}
    assert sorted(fields) == sorted(field.name for field in message.fields), message.full_name
    hints = get_type_hints(struct)
    for field in message.fields:
        compare_field(f"{message.full_name}.{field.name}", hints[fields[field.name]], field, seen)


def compare_field(where: str, hint: Any, field: FieldDescriptor, seen: dict[str, type]) -> None:
    entry = field.message_type if field.message_type and field.message_type.GetOptions().map_entry else None
    if entry is not None:
        assert get_origin(hint) is dict, where
        for part, argument in zip(("key", "value"), get_args(hint), strict=True):
            compare_value(f"{where}.{part}", argument, entry.fields_by_name[part], seen)
    elif field.is_repeated:
        assert get_origin(hint) is tuple, where
        argument, dots = get_args(hint)
        assert dots is Ellipsis, where
        compare_value(where, argument, field, seen)
    else:
        bare, is_optional = without_none(hint)
        assert is_optional == field.has_presence, f"{where}: None must stand for an unset message or oneof member"
        compare_value(where, bare, field, seen)


def compare_value(where: str, hint: Any, field: FieldDescriptor, seen: dict[str, type]) -> None:
    if field.message_type is not None:
        compare(hint, field.message_type, seen)
    elif field.enum_type is not None:
        assert issubclass(hint, enum.Enum), where
        assert sorted(member.value for member in hint) == sorted(value.name for value in field.enum_type.values), where
    else:
        assert hint is SCALARS[field.type], where


def test_every_message_has_exactly_the_fields_of_the_schema() -> None:
    """From ModelConfig downwards: no field is missing, none is added, and the types agree."""
    seen: dict[str, type] = {}
    descriptor = cast(Descriptor, message_class("inference.ModelConfig").DESCRIPTOR)
    compare(ModelConfig, descriptor, seen)
    assert set(seen) == walk(descriptor)


def walk(message: Descriptor, found: set[str] | None = None) -> set[str]:
    """Full names of the messages that can be reached from this one, without map entries."""
    found = set() if found is None else found
    if message.full_name in found:
        return found
    if not message.GetOptions().map_entry:
        found.add(message.full_name)
    for field in message.fields:
        if field.message_type is not None:
            walk(field.message_type, found)
    return found
