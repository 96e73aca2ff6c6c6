"""Operations of the core beside inference that cross a link, and the types of their arguments and results. Pure.

A query is answered within a callback, and its caller waits for it without a switch of tasks; a call takes a while, and
a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from protocol.access.key_table import KeyTable
from protocol.core import (
    InferenceCore,
    LoadParameters,
    ModelIndex,
    ModelMetadata,
    ModelRepository,
    ModelStatistics,
    QueueRoom,
    ServerMetadata,
)
from protocol.edge_link.frames import BrokenFrame
from protocol.text.description import TextDescription


class Operation(NamedTuple):
    """`is_kept`: its result holds as long as the generation does; `is_brief`: for a tenth of a second."""

    arguments: Any
    result: Any
    is_kept: bool = False
    is_brief: bool = False


class TextAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A text model, or the error in place of one."""

    text: TextDescription | None
    error: bytes = b""


@dataclass(frozen=True, slots=True)
class _ReadLoadParameters(LoadParameters):
    """Where they are read: msgspec knows one type of bytes in one place."""

    files: Mapping[str, bytes] = field(default_factory=dict)


_ModelVersion = tuple[str, int]

QUERIES: Mapping[str, Operation] = {
    "is_live": Operation(tuple[()], bool),
    "is_ready": Operation(tuple[()], bool),
    "is_model_ready": Operation(_ModelVersion, bool),
    "server_metadata": Operation(tuple[()], ServerMetadata, is_kept=True),
    "model_metadata": Operation(_ModelVersion, ModelMetadata, is_kept=True),
    "model_config": Operation(_ModelVersion, dict[str, Any], is_kept=True),
    "each_statistics": Operation(_ModelVersion, list[ModelStatistics]),
    "sleeping": Operation(tuple[()], dict[str, bool]),
    "repositories": Operation(tuple[()], list[ModelRepository]),
    "is_decoupled": Operation(_ModelVersion, bool, is_kept=True),
    "is_batching": Operation(_ModelVersion, bool, is_kept=True),
    "takes_device_tensors": Operation(_ModelVersion, bool, is_kept=True),
    "takes_shared_tensors": Operation(_ModelVersion, bool, is_kept=True),
    "labels": Operation(tuple[str, int, str], tuple[str, ...], is_kept=True),
    "queue_room": Operation(_ModelVersion, QueueRoom | None, is_brief=True),
    "cancel": Operation(tuple[str, str, int], int),
}

# Calls that are not the core's own.
KEY_TABLE = "key_table"
MODEL_FACTS = "model_facts"
ADMIT = "admit"
TEXT_MODEL, TEXT_MODELS = "text_model", "text_models"

CALLS: Mapping[str, Operation] = {
    "check_ready": Operation(tuple[()], bool),
    "check_model_ready": Operation(_ModelVersion, bool),
    "repository_index": Operation(tuple[bool], list[ModelIndex]),
    "load_model": Operation(tuple[str, _ReadLoadParameters], None),
    "unload_model": Operation(tuple[str, bool], None),
    "load_adapter": Operation(tuple[str, str, str, bool], None),
    "unload_adapter": Operation(tuple[str, str], None),
    "sleep": Operation(tuple[str, int], None),
    "wake": Operation(tuple[str], None),
    "reset_prefix_cache": Operation(tuple[str], None),
    "register_repository": Operation(tuple[ModelRepository], None),
    "unregister_repository": Operation(tuple[str], None),
    KEY_TABLE: Operation(tuple[()], KeyTable | None),
    ADMIT: Operation(tuple[str, str, float], None),
    MODEL_FACTS: Operation(tuple[str, int, tuple[str, ...]], list[bytes | None]),
    TEXT_MODEL: Operation(_ModelVersion, TextAnswer),
    TEXT_MODELS: Operation(tuple[()], list[bytes]),
}
# Their last argument has to be named.
_NAMED = {"repository_index": "ready", "unload_model": "unload_dependents", "load_adapter": "replace"}

_encoder = msgspec.msgpack.Encoder()


def encode_operation(name: str, arguments: tuple[Any, ...]) -> bytes:
    return _encoder.encode((name, arguments))


def decode_operation(text: memoryview, operations: Mapping[str, Operation]) -> tuple[str, tuple[Any, ...]]:
    """The name and the arguments. Raises BrokenFrame."""
    try:
        name, arguments = msgspec.msgpack.decode(text, type=tuple[str, msgspec.Raw])
        found: tuple[Any, ...] = msgspec.msgpack.decode(arguments, type=operations[name].arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError) as error:
        raise BrokenFrame(f"its operation is {bytes(text[:200])!r}: {error}") from None
    return name, found


def encode_result(result: Any) -> bytes:
    return _encoder.encode(result)


def decode_result(text: memoryview, operation: Operation) -> Any:
    """Raises BrokenFrame."""
    try:
        return msgspec.msgpack.decode(text, type=operation.result)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BrokenFrame(f"its result is {bytes(text[:200])!r}: {error}") from None


def answer_query(core: InferenceCore, name: str, arguments: tuple[Any, ...]) -> Any:
    """Raises ServerError."""
    found = getattr(core, name)(*arguments)
    return list(found) if name == "each_statistics" else found


async def answer_call(core: InferenceCore, name: str, arguments: tuple[Any, ...]) -> Any:
    """Raises ServerError."""
    named: dict[str, Any] = {}
    if (last := _NAMED.get(name)) is not None:
        *arguments, named[last] = arguments  # type: ignore[assignment]
    return await getattr(core, name)(*arguments, **named)
