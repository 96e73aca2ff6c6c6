"""Composes the gRPC, HTTP, OpenAI, SageMaker, Vertex AI and metrics services from the settings.

Part of the composition root: here a setting becomes a part of an edge. `trioton.server` opens and closes what this
module makes.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, cast

import trio

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.access.keys_file import KeysFile
from protocol.access.restricted import GRPC_PROTOCOL, HTTP_API, OPENAI_API, Dialect, RestrictedApis, Restriction
from protocol.console.interface import Console
from protocol.core import InferenceCore
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.grpc.server import serve_grpc
from protocol.grpc.settings import ALPN_PROTOCOL as GRPC_ALPN_PROTOCOL
from protocol.http.cloud.redirected import serve_platform
from protocol.http.cloud.sagemaker import SageMaker
from protocol.http.cloud.vertex_ai import VertexAI
from protocol.http.connections import ALPN_PROTOCOLS
from protocol.http.metrics import MetricsSettings, serve_metrics
from protocol.http.server import serve_http
from protocol.http.settings import HttpSettings, Interface
from protocol.jobs.keeping import JobKeeping
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.access_log import AccessLog
from protocol.log.failure_log import FailureLog
from protocol.media.fetcher import MediaFetcher
from protocol.metrics_text import MetricsText
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import Arrivals
from protocol.reactor.tls import TlsFiles, server_context
from protocol.responses.background import Responses
from protocol.server_settings import LogControl, TraceControl
from protocol.services import EdgeServices
from protocol.shared_memory.table import SharedMemoryTable
from trioton.delayed_core import DelayedCore
from trioton.settings import Address, Settings

# Of connections that come from edge processes, which keep the limits of those of clients.
_UNLIMITED = 2**31 - 1
_FOR_GOOD = 7 * 24 * 3600 * 1000  # milliseconds


class Maker(Protocol):
    def __call__(self, settings: Settings, shared: Shared, address: Address, tls: ssl.SSLContext | None, /) -> Edge: ...


class Edge(Protocol):
    """One of the services: starts with its bound address, ends by itself when it was told to stop."""

    def __call__(self, stop: trio.Event, *, task_status: trio.TaskStatus[Address]) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What the edges of one server have in common. `leaving` is set when it was told to stop. `relayed` has the words
    of services whose connections come from edge processes, each with one client's requests."""

    core: InferenceCore
    shared_memory: SharedMemoryTable
    limits: LimitCounter
    memory: RequestMemory
    log: LogControl
    trace: TraceControl
    keys: KeysFile | None
    leaving: trio.Event
    metrics: MetricsText
    connections: OpenConnections
    load_report: Callable[[str], Mapping[str, float]]
    addresses: Mapping[str, Address]
    failures: CallbackFailures
    failure_log: FailureLog
    access_log: AccessLog
    gen_ai: GenAi | None
    responses: Responses
    media: MediaFetcher | None
    console: Console | None
    keeping: JobKeeping
    relayed: Mapping[str, Arrivals] = field(default_factory=dict)


def tls_contexts(settings: Settings) -> dict[str, ssl.SSLContext]:
    """What TLS each service that is switched on is to use, by the word in its flags; those without TLS are left out.
    Blocks: it reads the files.

    Raises:
        CertificateError: a file cannot be used.
    """
    wanted: dict[str, tuple[TlsFiles | None, Sequence[str]]] = {
        "grpc": (settings.grpc_tls(), (GRPC_ALPN_PROTOCOL,)),
        "http": (settings.http_tls(), ALPN_PROTOCOLS),
        "openai": (settings.http_tls(), ALPN_PROTOCOLS),
        "metrics": (settings.http_tls() if settings.metrics_use_ssl else None, ALPN_PROTOCOLS),
    }
    return {
        word: server_context(files, protocols)
        for word, (files, protocols) in wanted.items()
        if files is not None and word in settings.services()
    }


def edges(settings: Settings, shared: Shared, tls: Mapping[str, ssl.SSLContext]) -> dict[str, Edge]:
    """The services that are switched on, by the word in their flags and in the order in which they open. `tls` is that
    of `tls_contexts`."""
    makers = {
        "grpc": _grpc,
        "http": _http,
        "openai": _openai,
        "sagemaker": _sagemaker,
        "vertex-ai": _vertex_ai,
        "metrics": _metrics,
    }
    made: dict[str, Edge] = {}
    for word, address in settings.services().items():
        if word in shared.relayed:
            made[word] = _behind_edges(settings, shared, word, makers[word])
        else:
            made[word] = makers[word](settings, shared, address, tls.get(word))
    return made


def _behind_edges(settings: Settings, shared: Shared, word: str, make: Maker) -> Edge:
    """The core's own edge of a service whose clients are connected with edge processes. These keep the limits of
    connections, and count them."""
    arrivals = shared.relayed[word]
    shared = replace(shared, connections=OpenConnections(), leaving=trio.Event())
    unlimited = replace(
        settings,
        http_max_connections=_UNLIMITED,
        http_max_requests_per_connection=0,
        http_max_connection_age=None,
        http_idle_timeout=_FOR_GOOD,
        http_send_timeout=_FOR_GOOD,
        grpc_max_connections=_UNLIMITED,
        grpc_max_concurrent_streams=_UNLIMITED,
        grpc_max_stream_resets=_UNLIMITED,
        grpc_max_control_frames=_UNLIMITED,
        grpc_max_connection_age=None,
        grpc_max_connection_idle=0,
        grpc_send_timeout=_FOR_GOOD,
        grpc_http2_max_ping_strikes=0,
        grpc_infer_response_compression_level="none",
    )
    edge = cast(Callable[..., Awaitable[None]], make(unlimited, shared, arrivals.address, None))
    return partial(edge, arrivals=arrivals)


def _grpc(settings: Settings, shared: Shared, address: Address, tls: ssl.SSLContext | None) -> Edge:
    if settings.debug_delays.holds_calls:
        shared = replace(shared, core=cast(InferenceCore, DelayedCore(shared.core, settings.debug_delays)))
    services = _services(shared, settings.grpc_restricted_protocol, GRPC_PROTOCOL, settings.grpc_header_forward_pattern)
    edge = replace(settings.grpc_edge(), tls=tls, has_fast_path=not settings.debug_delays.holds_calls)
    return partial(serve_grpc, services, edge)


def _http(settings: Settings, shared: Shared, address: Address, tls: ssl.SSLContext | None) -> Edge:
    services = _services(shared, settings.http_restricted_api, HTTP_API, settings.http_header_forward_pattern)
    edge = replace(
        settings.http_edge(),
        max_file_size=settings.jobs_max_file_bytes,
        tls=tls,
        openai=settings.openai(),
        interface=settings.http_interface(),
        metrics=settings.allow_metrics and settings.metrics_on_http_port,
    )
    return partial(serve_http, services, edge, leaving=shared.leaving)


def _openai(settings: Settings, shared: Shared, address: Address, tls: ssl.SSLContext | None) -> Edge:
    services = _services(shared, settings.openai_restricted_api, OPENAI_API, None)
    host, port = address
    edge = replace(
        settings.http_edge(),
        host=host,
        port=port,
        max_file_size=settings.jobs_max_file_bytes,
        tls=tls,
        openai=settings.openai(),
        interface=Interface.OPENAI,
        has_fast_path=False,
        console=False,
    )
    return partial(serve_http, services, edge, leaving=shared.leaving)


def _sagemaker(settings: Settings, shared: Shared, address: Address, tls: ssl.SSLContext | None) -> Edge:
    services, edge = _platform(settings, shared, address)
    app = SageMaker(services, edge, settings.sagemaker())
    return partial(serve_platform, app, app.inner, "sagemaker", leaving=shared.leaving)


def _vertex_ai(settings: Settings, shared: Shared, address: Address, tls: ssl.SSLContext | None) -> Edge:
    services, edge = _platform(settings, shared, address)
    app = VertexAI(services, edge, settings.vertex_ai())
    return partial(serve_platform, app, app.inner, "vertex-ai", leaving=shared.leaving)


def _platform(settings: Settings, shared: Shared, address: Address) -> tuple[EdgeServices, HttpSettings]:
    """As Triton has them: HTTP's limits and restrictions hold, its header forwarding does not."""
    services = _services(shared, settings.http_restricted_api, HTTP_API, None)
    host, port = address
    return services, replace(settings.http_edge(), host=host, port=port, console=False)


def services_of_batches(shared: Shared) -> EdgeServices:
    """With what the lines of batches run: whoever has made one was allowed to."""
    return _services(shared, (), OPENAI_API, None)


def _metrics(settings: Settings, shared: Shared, address: Address, tls: ssl.SSLContext | None) -> Edge:
    host, port = address
    listener = MetricsSettings(host, port, settings.http_edge().connections, tls)
    access = AccessControl(keys=shared.keys)
    return partial(
        serve_metrics,
        shared.metrics,
        listener,
        access=access,
        limits=shared.limits,
        leaving=shared.leaving,
        failures=shared.failures,
        counted=partial(shared.connections.of, "metrics"),
    )


def _services(
    shared: Shared, restrictions: Sequence[Restriction], dialect: Dialect, forwarding: HeaderForwarding | None
) -> EdgeServices:
    return EdgeServices(
        core=shared.core,
        shared_memory=shared.shared_memory,
        access=AccessControl(RestrictedApis(restrictions, dialect), shared.keys),
        forwarding=forwarding or HeaderForwarding(),
        limits=shared.limits,
        memory=shared.memory,
        log=shared.log,
        trace=shared.trace,
        load_report=shared.load_report,
        metrics=shared.metrics,
        connections=shared.connections,
        addresses=shared.addresses,
        failures=shared.failures,
        failure_log=shared.failure_log,
        access_log=shared.access_log,
        gen_ai=shared.gen_ai,
        responses=shared.responses,
        media=shared.media,
        console=shared.console,
        keeping=shared.keeping,
    )
