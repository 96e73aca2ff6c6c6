"""What an edge is given, around a fake core: the real parts where they need no server, small fakes where they do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.errors import InvalidArgument, NotFound, Unsupported
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.server_settings import LOG_FORMATS, LogSettings, Trace, TracedTensor, TraceSettings
from protocol.services import EdgeServices
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.grpc.fakes import FakeCore


@dataclass
class FakeLog:
    """A log control that only remembers."""

    settings: LogSettings = field(default_factory=LogSettings)

    def update(self, settings: LogSettings) -> None:
        if settings.log_format not in LOG_FORMATS:
            raise InvalidArgument(f"no such log format: {settings.log_format}")
        self.settings = settings


@dataclass(eq=False)
class FakeTrace(Trace):
    """The trace of one request: its activities in order. `end` must come once, and last."""

    model: str
    headers: dict[str, str] = field(default_factory=dict)
    activities: list[str] = field(default_factory=list)
    times: dict[str, int | None] = field(default_factory=dict)
    has_ended: bool = False

    def stamp(self, activity: str, ns: int | None = None) -> None:
        assert not self.has_ended
        self.activities.append(activity)
        self.times[activity] = ns

    def annotate(self, attributes: Mapping[str, str | int | float | Sequence[str]]) -> None: ...

    def child(self, model: str) -> None: ...

    def context(self) -> None: ...

    def identify(self, model_version: int, request_id: str) -> None:
        pass

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None:
        pass

    def end(self) -> None:
        assert not self.has_ended
        self.has_ended = True


@dataclass
class FakeTraceControl:
    """Traces every request while `is_on`; knows the model `echo` only."""

    is_on: bool = False
    follows_context: bool = False
    current: TraceSettings = field(default_factory=TraceSettings)
    updates: list[tuple[dict[str, Sequence[str] | None], str]] = field(default_factory=list)
    traces: list[FakeTrace] = field(default_factory=list)

    @property
    def is_sampling(self) -> bool:
        return self.is_on

    def settings(self, model: str = "") -> TraceSettings:
        if model not in ("", "echo"):
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        return self.current

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> TraceSettings:
        if "trace_file" in changes:
            raise Unsupported("trace file location can not be updated through network protocol")
        self.updates.append((dict(changes), model))
        return self.settings(model)

    def sample(self, model: str, *, traceparent: str = "", tracestate: str = "") -> FakeTrace | None:
        if not self.is_on:
            return None
        trace = FakeTrace(model, {"traceparent": traceparent, "tracestate": tracestate})
        self.traces.append(trace)
        return trace


def edge_services(core: FakeCore | None = None, **parts: Any) -> EdgeServices:
    """Services that allow everything, with some parts of one's own."""
    services = EdgeServices(
        core=core or FakeCore(),
        shared_memory=SharedMemoryTable(allow_registration=True),
        access=AccessControl(),
        forwarding=HeaderForwarding(),
        limits=LimitCounter(),
        memory=RequestMemory(1 << 40),
        log=FakeLog(),
        trace=FakeTraceControl(),
    )
    return dataclasses.replace(services, **parts)
