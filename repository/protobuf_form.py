"""Conversion between `ModelConfig` and the protobuf message `inference.ModelConfig`.

Text format and JSON both go through the message, so that ranges, enums, maps and oneofs are judged once, by protobuf
itself. `repository.pbtxt` and `repository.json_form` are the two callers.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message as ProtobufMessage

from protocol.errors import InvalidArgument
from protocol.proto import message_class
from repository.long_texts import LongTexts
from repository.model_config import ModelConfig

# msgspec learns a type at its first use; models load in threads, and two that teach it at once crash the process.
msgspec.convert({}, ModelConfig)


def new_message() -> ProtobufMessage:
    """An empty `inference.ModelConfig`."""
    return message_class("inference.ModelConfig")()


def config_from_message(message: ProtobufMessage, texts: LongTexts | None = None) -> ModelConfig:
    """The typed value of a message, with `texts` that were left out of it.

    Raises:
        InvalidArgument: an enum field holds a number that has no name; the text says which.
    """
    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
    if texts:
        fields = texts.put_back(fields)
    try:
        # Not strict: protobuf's JSON writes 64-bit integers, map keys and infinities as strings.
        return msgspec.convert(fields, ModelConfig, strict=False, str_keys=True)
    except msgspec.ValidationError as exc:  # protobuf has judged all the rest; its enums are open
        where = str(exc).rpartition("`$.")[2].removesuffix("`")
        raise InvalidArgument(f"the enum of field '{where}' has no value of the given number") from None


def message_from_config(config: ModelConfig) -> ProtobufMessage:
    """The message of a typed value.

    Raises:
        InvalidArgument: a number is outside its field's range, or two members of one oneof are set.
    """
    try:
        return json_format.ParseDict(set_fields(config), new_message())
    except json_format.ParseError as exc:
        raise InvalidArgument(f"model configuration of '{config.name}' cannot be written: {exc}") from None


def set_fields(config: ModelConfig) -> dict[str, Any]:
    """The configuration as plain dictionaries, lists and scalars; unset messages are left out."""
    fields: dict[str, Any] = _without_unset(msgspec.to_builtins(config, str_keys=True))
    return fields


def _without_unset(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unset(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_unset(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):  # in the words of protobuf's JSON
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
