"""Hypothesis strategies for model configurations: any value that the schema can hold."""

from __future__ import annotations

import types
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from protocol.proto import message_class
from repository.model_config import ModelConfig

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text("aB0._-\"'\\\n\0 $é模", max_size=6),
    # protobuf gives a float of 32 bits as its shortest decimal, so only those come back as they went in.
    FieldDescriptor.TYPE_FLOAT: st.integers(-99999, 99999).map(lambda number: number / 1000),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
}


def model_configs() -> st.SearchStrategy[ModelConfig]:
    """Configurations that protobuf can represent; most are nonsense to a server."""
    descriptor = cast(Descriptor, message_class("inference.ModelConfig").DESCRIPTOR)
    return cast(st.SearchStrategy[ModelConfig], _messages(ModelConfig, descriptor))


def _messages(struct: type[msgspec.Struct], descriptor: Descriptor) -> st.SearchStrategy[msgspec.Struct]:
    """Messages with a few of their fields set, and at most one of each oneof."""
    hints = get_type_hints(struct)
    attributes = {info.encode_name: info.name for info in msgspec.structs.fields(struct)}
    fields = {name: descriptor.fields_by_name[name] for name in attributes}
    values = {name: _field(hints[attributes[name]], field) for name, field in fields.items()}

    def one_of_each_oneof(names: set[str]) -> list[str]:
        chosen: dict[str, str] = {}
        for name in sorted(names):
            oneof = fields[name].containing_oneof
            chosen.setdefault(f"oneof {oneof.name}" if oneof is not None else name, name)
        return list(chosen.values())

    @st.composite
    def messages(draw: st.DrawFn) -> msgspec.Struct:
        names = one_of_each_oneof(draw(st.sets(st.sampled_from(sorted(fields)), max_size=4)))
        return struct(**{attributes[name]: draw(values[name]) for name in names})

    return messages() if fields else st.just(struct())


def _field(hint: Any, field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if get_origin(hint) is tuple:
        return st.lists(_value(get_args(hint)[0], field), max_size=2).map(tuple)
    if get_origin(hint) is dict:
        assert field.message_type is not None
        entry = field.message_type.fields_by_name
        key, value = get_args(hint)
        return st.dictionaries(_value(key, entry["key"]), _value(value, entry["value"]), max_size=2)
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(argument for argument in get_args(hint) if argument is not type(None))
    return _value(hint, field)


def _value(hint: Any, field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return _messages(hint, field.message_type)
    if field.enum_type is not None:
        return st.sampled_from(list(hint))
    return _SCALARS[field.type]
