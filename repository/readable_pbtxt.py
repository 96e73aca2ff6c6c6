"""Writes a configuration as readable `config.pbtxt`: only fields that matter, in few lines.

`repository.pbtxt` writes protobuf's own form, with every field that is set.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from protocol.errors import ServerError
from repository.backend_fields import fill_backend_fields
from repository.instance_groups import NO_GPUS
from repository.layout import ModelDirectory
from repository.model_config import Message, ModelConfig
from repository.validation import normalise

WIDTH = 110
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
# What is filled in again when the configuration is read.
_FILLED = ("name", "platform", "backend", "version_policy", "optimization", "instance_group", "default_model_filename")
_replace = msgspec.structs.replace


def format_readable(config: ModelConfig) -> str:
    """Text that `parse_pbtxt` reads back to an equal value; fields at their default are left out."""
    return "".join(f"{line}\n" for line in _fields(config, ""))


def without_defaults(config: ModelConfig, directory: ModelDirectory) -> ModelConfig:
    """A completed configuration without all that a server fills in again from the model's directory and by its own
    defaults. The backend stays, so that the configuration tells it. A single instance group of the model's own name is
    taken for the one that the server has made."""
    whole = _completed(config, directory)
    candidates: list[dict[str, Any]] = [
        {name: _default(ModelConfig, name)} for name in _FILLED if name != "backend" or config.is_ensemble
    ]
    if config.dynamic_batching is not None:
        candidates.append({"dynamic_batching": _replace(config.dynamic_batching, preferred_batch_size=())})
    for candidate in candidates:
        shorter = _replace(config, **candidate)
        try:
            if _completed(shorter, directory) == whole:
                config = shorter
        except ServerError:
            continue
    return config


def _completed(config: ModelConfig, directory: ModelDirectory) -> ModelConfig:
    filled = fill_backend_fields(config, directory)
    groups = filled.instance_group
    # Groups that are those of no configuration at all depend on the machine; any others stay as they are.
    is_automatic = len(groups) == 1 and groups[0].name == filled.name
    filled = _replace(filled, instance_group=() if is_automatic else groups)
    return normalise(filled, gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False)


def _fields(message: Message, indent: str) -> Iterator[str]:
    """The lines of a message's fields that are not at their default."""
    for field in msgspec.structs.fields(type(message)):
        value = getattr(message, field.name)
        if value != _default(type(message), field.name):
            yield from _field(field.encode_name, value, indent)


def _default(kind: type[Message], name: str) -> Any:
    for field in msgspec.structs.fields(kind):
        if field.name == name:
            return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    raise AttributeError(name)


def _field(name: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Message):
        yield from _message(f"{name} ", value, indent)
    elif isinstance(value, Mapping):
        for key, item in sorted(value.items()):
            shown = _scalar(key)
            if isinstance(item, Message):
                yield from _message(f"{name} ", item, indent, first=f"key: {shown}", around="value")
            else:
                yield f"{indent}{name} {{ key: {shown} value: {_scalar(item)} }}"
    elif isinstance(value, tuple) and value and isinstance(value[0], Message):
        yield f"{indent}{name} ["
        for place, item in enumerate(value):
            lines = list(_message("", item, f"{indent}  "))
            lines[-1] += "," if place < len(value) - 1 else ""
            yield from lines
        yield f"{indent}]"
    elif isinstance(value, tuple):
        yield f"{indent}{name}: [ {', '.join(map(_scalar, value))} ]"
    else:
        yield f"{indent}{name}: {_scalar(value)}"


def _message(head: str, message: Message, indent: str, *, first: str = "", around: str = "") -> Iterator[str]:
    """A message in one line where that is short, else with its fields in lines of their own."""
    inner = [line.strip() for line in _fields(message, "")]
    body = " ".join(inner)
    if around:
        body = f"{first} {around} {{ {body} }}" if body else f"{first} {around} {{}}"
    line = f"{indent}{head}{{ {body} }}" if body else f"{indent}{head}{{}}"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{indent}{head}{{"
    if around:
        yield f"{indent}  {first}"
        yield f"{indent}  {around} {{"
        yield from _fields(message, f"{indent}    ")
        yield f"{indent}  }}"
    else:
        yield from _fields(message, f"{indent}  ")
    yield f"{indent}}}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, str):
        return '"' + "".join(_escaped(character) for character in value) + '"'
    return repr(value)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character.isprintable() else "".join(f"\\{byte:03o}" for byte in character.encode())
