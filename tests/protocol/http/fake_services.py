"""What an edge is given, with small stand-ins for what other parts of the server would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.core import InferenceCore
from protocol.errors import InvalidArgument, NotFound
from protocol.gen_ai import GenAi
from protocol.http.codec.request_templates import RequestTemplates
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Headers
from protocol.http.settings import HttpSettings
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.call_origin import CallOrigin
from protocol.log.request_ids import NO_IDS, RequestIds
from protocol.media.fetcher import MediaFetcher
from protocol.server_settings import LogSettings, Trace, TracedTensor, TraceSettings
from protocol.services import EdgeServices
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.http.fake_core import FakeCore


@dataclass
class FakeLog:
    """A LogControl that keeps what it is told."""

    settings: LogSettings = field(default_factory=LogSettings)

    def update(self, settings: LogSettings) -> None:
        if settings.log_format not in ("default", "ISO8601"):
            raise InvalidArgument(f"invalid argument for --log_format, got: {settings.log_format}")
        self.settings = settings


@dataclass
class FakeTrace:
    """One trace: its stamps by name, and how often it was ended."""

    model: str
    parent: str = ""
    stamps: list[str] = field(default_factory=list)
    ends: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)

    def stamp(self, activity: str, ns: int | None = None) -> None:
        assert self.ends == 0
        self.stamps.append(activity)

    def identify(self, model_version: int, request_id: str) -> None: ...

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None: ...

    def annotate(self, attributes: Mapping[str, Any]) -> None:
        self.attributes.update(attributes)

    def child(self, model: str) -> None: ...

    def context(self) -> None: ...

    def end(self) -> None:
        self.ends += 1


@dataclass
class FakeTraceControl:
    """A TraceControl for the models `echo` and those in `overrides`; it traces every request while `is_on`."""

    is_on: bool = False
    follows_context: bool = False
    current: TraceSettings = field(default_factory=TraceSettings)
    updates: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    traces: list[FakeTrace] = field(default_factory=list)

    @property
    def is_sampling(self) -> bool:
        return self.is_on

    def settings(self, model: str = "") -> TraceSettings:
        if model not in ("", "echo"):
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        return self.current

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> TraceSettings:
        self.updates.append((model, dict(changes)))
        if rate := changes.get("trace_rate"):
            self.current = replace(self.current, rate=int(rate[0]))
        if level := changes.get("trace_level"):
            self.current = replace(self.current, level=tuple(level))
        return self.settings(model)

    def sample(self, model: str, *, traceparent: str = "", tracestate: str = "") -> Trace | None:
        if not self.is_on:
            return None
        trace = FakeTrace(model, traceparent)
        self.traces.append(trace)
        return trace


def make_services(
    core: InferenceCore | None = None,
    *,
    access: AccessControl | None = None,
    forwarding: str = "",
    trace: FakeTraceControl | None = None,
    allow_shared_memory: bool = True,
    load_report: Callable[[str], Mapping[str, float]] | None = None,
    gen_ai: GenAi | None = None,
    media: MediaFetcher | None = None,
) -> EdgeServices:
    return EdgeServices(
        core=core or FakeCore(),
        shared_memory=SharedMemoryTable(allow_registration=allow_shared_memory),
        access=access or AccessControl(),
        forwarding=HeaderForwarding(forwarding),
        limits=LimitCounter(),
        memory=RequestMemory(1 << 40),
        log=FakeLog(),
        trace=trace or FakeTraceControl(),
        load_report=load_report,
        gen_ai=gen_ai,
        media=media,
    )


@dataclass
class FakeWriter:
    """A BodyWriter that keeps what it is given."""

    status: int = 0
    body: bytes = b""
    ended: bool = False

    @property
    def has_started(self) -> bool:
        return self.status != 0

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status

    async def send(self, data: bytes) -> None:
        self.body += data

    def send_at_once(self, data: bytes) -> bool:
        self.body += data
        return True

    async def end(self) -> None:
        self.ended = True


def make_request(
    services: EdgeServices | None = None, *, path_parameters: Mapping[str, str], body: bytes = b""
) -> HttpRequest:
    origin = CallOrigin(RequestIds(), NO_IDS, lambda: "")
    return HttpRequest(
        services or make_services(), HttpSettings(), path_parameters, {}, body, FakeWriter(), RequestTemplates(), origin
    )
