"""Texts of records: what requests and responses have of their own, errors, tags, and events of traces. Pure.

All are MessagePack. Whatever cannot be read raises BrokenFrame.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from protocol import errors
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.frames import BrokenFrame
from protocol.errors import QuotaExceeded, ServerError
from protocol.messages import ParameterValue
from protocol.origin import RequestTags
from protocol.server_settings import Trace, TracedTensor

T = TypeVar("T")
Attribute: TypeAlias = str | int | float | tuple[str, ...]
# Bytes of a text of ours, and of an error's; what is behind it is cut off.
_LONGEST_ERROR = 1 << 20

encode_text = msgspec.msgpack.Encoder().encode


def decode_text(text: memoryview, kind: type[T]) -> T:
    """Raises BrokenFrame."""
    try:
        return msgspec.msgpack.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BrokenFrame(f"its text of a {kind.__name__} is {bytes(text[:200])!r}: {error}") from None


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The first that the core says: the sizes of the two segments, whether there is a generation, and whether calls of
    generative models are observed."""

    input_bytes: int
    output_bytes: int
    has_generation: bool
    query_seconds: float
    observes_calls: bool = False


class TraceText(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What an edge knows of a request that may be traced: headers, where they matter, and what was recorded
    so far."""

    traceparent: str = ""
    tracestate: str = ""
    stamps: list[tuple[str, int]] = []
    attributes: dict[str, Attribute] = {}


class StampsText(msgspec.Struct, array_like=True, frozen=True):
    """What has happened in the edge to a request that is traced, since it went to the core: it has ended."""

    number: int
    stamps: list[tuple[str, int]]
    attributes: dict[str, Attribute]


class UnsentTraceText(msgspec.Struct, array_like=True, frozen=True):
    """Of a request to a model that has ended in the edge."""

    model: str
    trace: TraceText


class RequestExtras(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What a request has beside its template and its tensors. `is_measured` asks for what a trace records; `trace` is
    there if the core is to decide whether the request is traced. `size` is what it costs of a quota of bytes, None
    where its key has no quota, as the edge knows. With a `charge` it is charged together with others of that number, as
    one request; there are to be so many `inferences` of it. It `is_observed` if its call is."""

    id: str = ""
    parameters: dict[str, ParameterValue] = {}
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    is_measured: bool = False
    trace: TraceText | None = None
    size: float | None = None
    charge: int = 0
    is_observed: bool = False
    inferences: int = 1


class ResponseExtras(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What a response has beside its template and its tensors."""

    id: str = ""
    parameters: dict[str, ParameterValue] = {}


class UsedText(msgspec.Struct, array_like=True, frozen=True):
    """What a key has used of its quota beside requests that have come: see `protocol.quotas.told.Desk`."""

    key: str
    model: str
    requests: int
    size: float
    tokens: float = 0.0


class ChargedText(msgspec.Struct, array_like=True, frozen=True):
    """What requests have cost that were charged together: see `protocol.quotas.told.Desk`."""

    tokens: float
    counted: float | None


# Tags


def encode_tags(tags: RequestTags) -> bytes:
    return encode_text((tags.request_id, tags.trace_id, tags.span_id, tags.key))


class LinkedOrigin(msgspec.Struct, eq=False):
    """The origin of a request that came by the link. Its tags are read only where a line is written. Implements
    `protocol.origin.Origin`."""

    text: memoryview

    def tags(self, own_id: str) -> RequestTags:
        if not len(self.text):
            return RequestTags()
        return RequestTags(*msgspec.msgpack.decode(self.text, type=tuple[str, str, str, str]))


# Errors

_ERRORS: Mapping[str, type[ServerError]] = {
    NotLinked.__name__: NotLinked,
    **{
        name: found
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, ServerError)
    },
}


class ErrorText(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """How an error crosses: the name of its class, or of the nearest of its bases that edges know."""

    name: str
    message: str
    retry_after: float | None = None
    limit: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    param: str = ""


def encode_error(error: ServerError) -> bytes:
    name = next(base.__name__ for base in type(error).__mro__ if _ERRORS.get(base.__name__) is base)
    message = str(error.message)[:_LONGEST_ERROR].encode("utf-8", "replace").decode()
    if isinstance(error, QuotaExceeded):
        return encode_text(ErrorText(name, message, error.retry_after, error.limit, tuple(error.fields)))
    param = error.param if isinstance(error, errors.InvalidField) else ""
    return encode_text(ErrorText(name, message, error.retry_after, param=param))


def decode_error(text: memoryview) -> ServerError:
    """Raises BrokenFrame."""
    found = decode_text(text, ErrorText)
    kind = _ERRORS.get(found.name)
    if kind is None:
        raise BrokenFrame(f"its error is a {found.name!r}")
    if issubclass(kind, QuotaExceeded):
        return kind(found.message, retry_after=found.retry_after or 0.0, limit=found.limit, fields=found.fields)
    error = kind(found.message, found.param) if issubclass(kind, errors.InvalidField) else kind(found.message)
    if found.retry_after != kind.retry_after:
        error.retry_after = found.retry_after
    return error


# Traces

Attributes: TypeAlias = Mapping[str, str | int | float | Sequence[str]]
_STAMP, _IDENTIFY, _ANNOTATE = range(3)


class LinkedTrace:
    """Records what happens to a request in the core, for the access record that its edge has: stamps, version and
    attributes cross, with the answer. Implements `protocol.server_settings.Trace` in front of `trace`, the request's
    own if it has one."""

    __slots__ = ("events", "trace")

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.events: list[tuple[int, Any, Any]] = []

    def stamp(self, activity: str, ns: int | None = None) -> None:
        at = time.monotonic_ns() if ns is None else ns
        self.events.append((_STAMP, activity, at))
        if self.trace is not None:
            self.trace.stamp(activity, at)

    def identify(self, model_version: int, request_id: str) -> None:
        self.events.append((_IDENTIFY, model_version, request_id))
        if self.trace is not None:
            self.trace.identify(model_version, request_id)

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None:
        if self.trace is not None:
            self.trace.record_tensors(activity, tensors)

    def annotate(self, attributes: Attributes) -> None:
        self.events.append((_ANNOTATE, dict(attributes), None))
        if self.trace is not None:
            self.trace.annotate(attributes)

    def child(self, model: str) -> Trace | None:
        return None if self.trace is None else self.trace.child(model)

    def context(self) -> str | None:
        return None if self.trace is None else self.trace.context()

    def end(self) -> None:
        """The trace ends when the edge says so."""

    def take(self) -> bytes:
        """What was recorded since this was called last; empty for nothing."""
        events, self.events = self.events, []
        return encode_text(events) if events else b""


def replay(text: memoryview, trace: Trace) -> None:
    """Record in a trace what a `LinkedTrace` has taken. Raises BrokenFrame."""
    for kind, what, more in decode_text(text, list[tuple[int, Any, Any]]):
        if kind == _STAMP and isinstance(what, str) and isinstance(more, int):
            trace.stamp(what, more)
        elif kind == _IDENTIFY and isinstance(what, int) and isinstance(more, str):
            trace.identify(what, more)
        elif kind == _ANNOTATE and isinstance(what, dict):
            trace.annotate(what)
        else:
            raise BrokenFrame(f"its event is of kind {kind}: {str(what)[:200]!r}")
