"""Our `.proto` files against the descriptors that Triton's own client carries."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, cast, get_type_hints

import betterproto2
import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from protocol.datatypes import DataType
from protocol.grpc.generated.grpc.health.v1 import HealthCheckResponseServingStatus
from protocol.grpc.generated.inference import DataType as GeneratedDataType
from protocol.grpc.generated.message_pool import default_message_pool
from protocol.proto import message_class

TRITON_FILES: tuple[FileDescriptor, ...] = (model_config_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR)

# Protobuf's type numbers, in the words that betterproto2 uses for them.
TYPE_WORDS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def with_nested(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        yield from with_nested(nested)


def messages_of(file: FileDescriptor) -> dict[str, Descriptor]:
    top = file.message_types_by_name.values()
    return {message.full_name: message for one in top for message in with_nested(one)}


def enums_of(file: FileDescriptor) -> dict[str, EnumDescriptor]:
    nested = [enum for message in messages_of(file).values() for enum in message.enum_types]
    return {enum.full_name: enum for enum in (*file.enum_types_by_name.values(), *nested)}


def our_file(message: str) -> FileDescriptor:
    return cast(FileDescriptor, message_class(message).DESCRIPTOR.file)


OUR_FILES = (our_file("inference.ModelConfig"), our_file("inference.ModelInferRequest"))

TRITON_MESSAGES = {name: message for file in TRITON_FILES for name, message in messages_of(file).items()}
OUR_MESSAGES = {name: message for file in OUR_FILES for name, message in messages_of(file).items()}
TRITON_ENUMS = {name: enum for file in TRITON_FILES for name, enum in enums_of(file).items()}
OUR_ENUMS = {name: enum for file in OUR_FILES for name, enum in enums_of(file).items()}
REAL_MESSAGES = sorted(name for name, message in TRITON_MESSAGES.items() if not message.GetOptions().map_entry)


def describe_field(field: FieldDescriptor) -> dict[str, Any]:
    referred = field.message_type or field.enum_type
    return {
        "number": field.number,
        "type": TYPE_WORDS[field.type],
        "refers to": referred.full_name if referred else None,
        "repeated": field.is_repeated,
        "presence": field.has_presence,
        "packed": field.is_packed,
        "oneof": field.containing_oneof.name if field.containing_oneof else None,
        "json": field.json_name,
    }


def describe(message: Descriptor) -> dict[str, Any]:
    fields = {field.name: describe_field(field) for field in message.fields}
    return {"map entry": message.GetOptions().map_entry, "fields": fields, "oneofs": sorted(message.oneofs_by_name)}


def test_the_same_messages_exist() -> None:
    """No message of Triton's is missing and none is added."""
    assert sorted(OUR_MESSAGES) == sorted(TRITON_MESSAGES)


@pytest.mark.parametrize("name", sorted(TRITON_MESSAGES))
def test_a_message_has_the_same_fields(name: str) -> None:
    """Field names, numbers, types, labels and oneofs are Triton's."""
    assert describe(OUR_MESSAGES[name]) == describe(TRITON_MESSAGES[name])


def test_enums_have_the_same_values() -> None:
    def values(enums: dict[str, EnumDescriptor]) -> dict[str, list[tuple[str, int]]]:
        return {name: [(value.name, value.number) for value in enum.values] for name, enum in enums.items()}

    assert values(OUR_ENUMS) == values(TRITON_ENUMS)


def test_the_service_has_the_same_calls() -> None:
    def calls(file: FileDescriptor) -> dict[str, tuple[str, str, bool, bool]]:
        return {
            method.full_name: (
                method.input_type.full_name,
                method.output_type.full_name,
                method.client_streaming,
                method.server_streaming,
            )
            for service in file.services_by_name.values()
            for method in service.methods
        }

    assert calls(OUR_FILES[1]) == calls(service_pb2.DESCRIPTOR)


def test_a_serialized_message_is_the_same_bytes() -> None:
    """A request written by Triton's class reads back from ours, in every field."""
    theirs = service_pb2.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"abc"])
    theirs.parameters["priority"].uint64_param = 2**64 - 1
    theirs.inputs.add(name="x", datatype="FP32", shape=[-1, 3]).contents.fp32_contents.extend([1.5, -2.0])
    ours = message_class("inference.ModelInferRequest").FromString(theirs.SerializeToString())
    assert str(ours) == str(theirs)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


def generated_class(full_name: str) -> type[betterproto2.Message]:
    return default_message_pool.url_to_type[f"type.googleapis.com/{full_name}"]


def fields_of(generated: type[betterproto2.Message]) -> tuple[dataclasses.Field[Any], ...]:
    assert dataclasses.is_dataclass(generated)
    return dataclasses.fields(generated)


def python_name(full_name: str) -> str:
    """`inference.A.B` is the class `AB` in the generated module."""
    return full_name.partition(".")[2].replace(".", "")


def describe_generated(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    metadata = betterproto2.FieldMetadata.get(field)
    map_types = [entry.proto_type for entry in metadata.map_meta] if metadata.map_meta else None
    return {
        "number": metadata.number,
        "type": metadata.proto_type,
        "map": map_types,
        "repeated": metadata.repeated,
        "oneof": metadata.group,
        "hint": str(hint),
    }


@pytest.mark.parametrize("name", REAL_MESSAGES)
def test_the_generated_dataclass_has_the_same_fields(name: str) -> None:
    """betterproto2's code says the same as Triton's descriptors: names, numbers, types, maps and oneofs."""
    generated = generated_class(name)
    hints = get_type_hints(generated)
    found = {
        field.name.removesuffix("_"): describe_generated(field, hints[field.name])  # `global_`: a Python keyword
        for field in fields_of(generated)
    }
    message = TRITON_MESSAGES[name]
    assert sorted(found) == sorted(field.name for field in message.fields)
    for field in message.fields:
        description = found[field.name]
        entry = field.message_type if field.message_type and field.message_type.GetOptions().map_entry else None
        referred = entry.fields_by_name["value"] if entry else field
        map_types = [TYPE_WORDS[entry.fields_by_name[part].type] for part in ("key", "value")] if entry else None
        assert description["number"] == field.number
        assert description["type"] == ("map" if entry else TYPE_WORDS[field.type])
        assert description["map"] == map_types
        assert description["repeated"] == (field.is_repeated and not entry)
        assert description["oneof"] == (field.containing_oneof.name if field.containing_oneof else None)
        named = referred.message_type or referred.enum_type
        if named is not None:  # in the hint as `module.Name`, alone or within list[...], dict[...] or a union
            assert python_name(named.full_name) in re.findall(r"\w+", description["hint"])


def test_datatypes_match_the_enum_of_the_proto_file() -> None:
    """`protocol.datatypes` and the schema agree on every name and number."""
    from_file = {value.name: value.number for value in TRITON_ENUMS["inference.DataType"].values}
    assert {datatype.value: datatype.number for datatype in DataType} == from_file
    assert {value.proto_name or value.name: value.value for value in GeneratedDataType} == from_file


def test_health_has_the_fields_and_numbers_of_the_health_protocol() -> None:
    file = our_file("grpc.health.v1.HealthCheckRequest")
    assert describe_fields_briefly(file) == {
        "grpc.health.v1.HealthCheckRequest": {"service": (1, "string")},
        "grpc.health.v1.HealthCheckResponse": {"status": (1, "enum")},
    }
    expected = {"UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2, "SERVICE_UNKNOWN": 3}
    assert {value.name: value.value for value in HealthCheckResponseServingStatus} == expected
    methods = {method.name: method.server_streaming for method in file.services_by_name["Health"].methods}
    assert methods == {"Check": False, "Watch": True}


def describe_fields_briefly(file: FileDescriptor) -> dict[str, dict[str, tuple[int, str]]]:
    return {
        name: {field.name: (field.number, TYPE_WORDS[field.type]) for field in message.fields}
        for name, message in messages_of(file).items()
    }


def test_an_unknown_message_is_a_key_error() -> None:
    with pytest.raises(KeyError, match=r"inference\.NoSuchMessage"):
        message_class("inference.NoSuchMessage")
