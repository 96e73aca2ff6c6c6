"""Typed heads (JSON) of a worker's frames.

Their meaning is in `worker.trioton_worker.frames`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from backends.python.wire.frames import BrokenFrame, Frame
from backends.python.worker.trioton_worker.frames import LOG_LEVELS
from backends.services import MetricKind
from protocol.messages import LATEST_VERSION, ParameterValue


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """Base of all."""


class DoneHead(Head):
    """`config` is JSON text, or None where the model has no `auto_complete_config`; the others answer INITIALIZE.
    `engine` is what an engine's worker says of its engine (`backends.engines`)."""

    config: str | None = None
    is_async: bool = False
    has_is_ready: bool = False
    engine: dict[str, Any] | None = None


class FailedHead(Head):
    message: str
    traceback: str = ""


class LogHead(Head):
    """`batch` is the number of that which the line belongs to, 0 for none; what the model has printed has no place.
    Lines of `logging` have its level as `severity`, the name of the `logger`, and the type, message and stack trace of
    what they tell of."""

    level: int
    message: str
    filename: str = ""
    line: int = 0
    batch: int = 0
    is_printed: bool = False
    severity: int = 0
    logger: str = ""
    exception: tuple[str, str, str] | None = None


class ExecutedHead(Head):
    """Mostly nothing. `rescheduled` is for decoupled models alone."""

    errors: list[tuple[int, int, str]] = []
    parameters: list[tuple[int, dict[str, ParameterValue]]] = []
    wanted: int = 0
    rescheduled: list[int] = []
    failure: FailedHead | None = None


class ResponseHead(Head):
    """With neither an error nor a run of tensors there is no response, only what `end` says."""

    batch: int
    index: int
    end: int
    error: tuple[int, str] | None = None
    parameters: dict[str, ParameterValue] = {}


class InferHead(Head):
    """`batch` and `index` say whose call it is; -1 where that is nobody's, or the whole batch's."""

    call: int
    model: str
    outputs: list[str]
    stream: bool = False
    version: int = LATEST_VERSION
    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout: int = 0
    parameters: dict[str, ParameterValue] = {}
    batch: int = -1
    index: int = -1
    is_traced: bool = False


class ForgetHead(Head):
    call: int


class TakenHead(Head):
    call: int
    count: int


class CheckedHead(Head):
    ready: bool
    error: str = ""


class Ask(msgspec.Struct, forbid_unknown_fields=True, tag_field="do"):
    """Base of the heads of CALL frames, told apart by their field `do`."""

    call: int


class LoadAsk(Ask, tag="load"):
    """`files` are names and sizes; the contents follow each other in the body."""

    model: str
    config: str
    files: list[tuple[str, int]]


class UnloadAsk(Ask, tag="unload"):
    model: str
    unload_dependents: bool


class ReadyAsk(Ask, tag="ready"):
    model: str
    version: int


class FamilyAsk(Ask, tag="family"):
    name: str
    description: str
    kind: MetricKind


class MetricAsk(Ask, tag="metric"):
    family: int
    labels: dict[str, str]
    buckets: list[float]


class ValueAsk(Ask, tag="value"):
    id: int


Question: TypeAlias = LoadAsk | UnloadAsk | ReadyAsk | FamilyAsk | MetricAsk | ValueAsk


class MetricHead(Head):
    """Values that are no JSON numbers come as text."""

    do: str
    id: int
    value: float | str = 0.0


_questions = msgspec.json.Decoder(Question)


def decode_question(frame: Frame) -> Question:
    """The head of a CALL frame. Raises BrokenFrame."""
    try:
        question: Question = _questions.decode(frame.head)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BrokenFrame(f"its call has the head {bytes(frame.head[:200])!r}: {error}") from None
    return question


def log_level_name(head: LogHead) -> str:
    """The name of a message's level in Triton's API. Raises BrokenFrame."""
    if not 0 <= head.level < len(LOG_LEVELS):
        raise BrokenFrame(f"its log message has the level {head.level}")
    return LOG_LEVELS[head.level]
