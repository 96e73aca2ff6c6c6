"""Records of requests: the plain data behind the `InferenceRequest` objects that a model sees.

The worker works on records; a model's object has one, and nothing else. A record lives as long as the object, or its
batch.
"""

from __future__ import annotations

from copy import copy
from typing import AbstractSet, Any, Iterable

from .preferred_memory import PreferredMemory
from .senders import Reply
from .session import LiveBatch
from .tensors import Tensor
from .trace import InferenceTrace

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2


class RequestHeader:
    """What a request says besides its id and inputs. Never changed: the plain requests of a model share one."""

    __slots__ = (
        "correlation_id",
        "flags",
        "model_name",
        "model_version",
        "output_names",
        "parameters",
        "preferred_memory",
        "timeout",
        "trace",
    )

    def __init__(
        self,
        output_names: AbstractSet[str],
        *,
        correlation_id: int | str = 0,
        flags: int = 0,
        timeout: int = 0,
        parameters: dict[str, Any] | None = None,
        model_name: str = "",
        model_version: int = -1,
        preferred_memory: PreferredMemory | None = None,
        trace: str | InferenceTrace | None = None,
    ) -> None:
        self.output_names = output_names
        self.correlation_id = correlation_id
        self.flags = flags
        self.timeout = timeout
        self.parameters = {} if parameters is None else parameters
        self.model_name = model_name
        self.model_version = model_version
        self.preferred_memory = preferred_memory
        # Of a request from the server: its context as JSON text. Of one that a model makes: the trace that it gave.
        self.trace = trace

    def with_flags(self, flags: int) -> RequestHeader:
        changed = copy(self)
        changed.flags = flags
        return changed


class RequestRecord:
    """One request. `batch` and `index` say where it belongs; those that a model makes are of no batch, and nothing can
    be sent back for them. `reply` is there once somebody has asked for a response sender."""

    __slots__ = ("batch", "header", "id", "index", "inputs", "release_flags", "reply")

    reply: Reply | None

    def __init__(
        self, inputs: list[Tensor], batch: LiveBatch | None, index: int, header: RequestHeader, id: str = ""
    ) -> None:
        self.inputs = inputs
        self.batch = batch
        self.index = index
        self.header = header
        self.id = id
        self.reply = None
        self.release_flags = RELEASE_ALL

    def open_reply(self) -> Reply | None:
        if self.reply is None and self.batch is not None:
            self.reply = Reply(self.batch, self.index, self.header.output_names)
        return self.reply

    def inference_trace(self) -> InferenceTrace:
        trace = self.header.trace
        return trace if isinstance(trace, InferenceTrace) else InferenceTrace(self.batch, self.index, trace)


_new = RequestRecord.__new__


def received_records(
    each: Iterable[list[Tensor]], batch: LiveBatch, header: RequestHeader, first: int = 0
) -> list[RequestRecord]:
    """A record for each request with these inputs, all with the same header; they are the batch's from `first` on."""
    found: list[RequestRecord] = []
    for index, inputs in enumerate(each, first):
        record = _new(RequestRecord)  # its constructor's call would cost as much as all of this
        record.inputs = inputs
        record.batch = batch
        record.index = index
        record.header = header
        record.id = ""
        record.reply = None
        record.release_flags = RELEASE_ALL
        found.append(record)
    return found
