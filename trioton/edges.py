"""The three services in front of the core, as the settings want them: gRPC, HTTP and metrics.

Part of the composition root: here a setting becomes a part of an edge. `trioton.server` opens and closes what this
module makes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.access.keys_file import KeysFile
from protocol.access.restricted import GRPC_PROTOCOL, HTTP_API, Dialect, RestrictedApis, Restriction
from protocol.core import InferenceCore
from protocol.errors import Unsupported
from protocol.grpc.server import GrpcSettings, serve_grpc
from protocol.http.metrics import MetricsSettings, serve_metrics
from protocol.http.server import HttpSettings, serve_http
from protocol.limits import LimitCounter
from protocol.server_settings import LogControl, LogSettings, Trace, TraceControl, TraceSettings
from protocol.services import EdgeServices
from protocol.shared_memory.table import SharedMemoryTable
from trioton.settings import Address, Settings


class Edge(Protocol):
    """One of the three services: starts with its bound address, ends by itself when it was told to stop."""

    def __call__(self, stop: trio.Event, *, task_status: trio.TaskStatus[Address]) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What the edges of one server have in common."""

    core: InferenceCore
    shared_memory: SharedMemoryTable
    limits: LimitCounter
    log: LogControl
    trace: TraceControl
    keys: KeysFile | None
    render_metrics: Callable[[], bytes]


def edges(settings: Settings, shared: Shared) -> dict[str, Edge]:
    """The services that are switched on, by the word in their flags and in the order in which they open."""
    makers: dict[str, Callable[[Settings, Shared, Address], Edge]] = {"grpc": _grpc, "http": _http, "metrics": _metrics}
    return {word: makers[word](settings, shared, address) for word, address in settings.services().items()}


def _grpc(settings: Settings, shared: Shared, address: Address) -> Edge:
    services = _services(shared, settings.grpc_restricted_protocol, GRPC_PROTOCOL, settings.grpc_header_forward_pattern)
    host, port = address
    return partial(serve_grpc, services.core, GrpcSettings(host=host, port=port))


def _http(settings: Settings, shared: Shared, address: Address) -> Edge:
    services = _services(shared, settings.http_restricted_api, HTTP_API, settings.http_header_forward_pattern)
    host, port = address
    http = HttpSettings(
        host, port, max_input_size=settings.http_max_input_size, max_body_size=settings.http_max_body_size
    )
    return partial(serve_http, services.core, http)


def _metrics(settings: Settings, shared: Shared, address: Address) -> Edge:
    host, port = address
    return partial(serve_metrics, shared.render_metrics, MetricsSettings(host, port))


def _services(
    shared: Shared, restrictions: Sequence[Restriction], dialect: Dialect, forwarding: HeaderForwarding | None
) -> EdgeServices:
    return EdgeServices(
        core=shared.core,
        shared_memory=shared.shared_memory,
        access=AccessControl(RestrictedApis(restrictions, dialect), shared.keys),
        forwarding=forwarding or HeaderForwarding(),
        limits=shared.limits,
        log=shared.log,
        trace=shared.trace,
    )


class FixedLog:
    """A LogControl whose settings cannot be changed."""

    @property
    def settings(self) -> LogSettings:
        return LogSettings()

    def update(self, settings: LogSettings) -> None:
        raise Unsupported("log settings cannot be changed at run time yet")


class NoTrace:
    """A TraceControl that traces nothing."""

    def settings(self, model: str = "") -> TraceSettings:
        return TraceSettings()

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> TraceSettings:
        raise Unsupported("tracing is not supported yet")

    def sample(self, model: str) -> Trace | None:
        return None
