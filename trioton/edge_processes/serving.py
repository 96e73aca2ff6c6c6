"""Composes the services of an edge process from the settings."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import trio

from protocol.failures import CallbackFailures
from protocol.grpc.relay.server import serve_relayed
from protocol.grpc.settings import ALPN_PROTOCOL as GRPC_ALPN_PROTOCOL
from protocol.http.connections import ALPN_PROTOCOLS, serve_app
from protocol.http.exchange import App
from protocol.http.relay.app import RelayApp
from protocol.http.relay.linked import LinkedApp
from protocol.http.relay.upstream import MOST_IDLE, Upstreams
from protocol.http.routes import route_table
from protocol.http.settings import Interface
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import HandedOver
from protocol.reactor.tls import server_context
from protocol.services import Linked
from trioton.descriptor_limit import descriptor_limit
from trioton.edge_processes.figures import RelayedCalls
from trioton.edge_processes.linked import LinkedInference, Linking
from trioton.edge_processes.start import EdgeStart

# Of the descriptors that the core's process may have, which is as many as this one: what the idle connections of one
# service of one edge process may take. Most of them are of clients that have left.
_IDLE_SHARE = 32


class Serve(Protocol):
    def __call__(self, *, task_status: trio.TaskStatus[tuple[str, int]]) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Serving:
    """What the services of one edge process share. `open_upstream` opens a connection to the core's edge of a word, in
    the name of a client."""

    arrivals: Mapping[str, HandedOver]
    open_upstream: Callable[[str, str], Awaitable[trio.SocketStream]]
    limits: LimitCounter
    failures: CallbackFailures
    connections: OpenConnections
    memory: RequestMemory
    leaving: trio.Event
    stop: trio.Event
    linking: Linking
    relayed: RelayedCalls


def edge_services(start: EdgeStart, serving: Serving) -> Iterator[Serve]:
    """Each as a function that serves. Reads the certificates; raises CertificateError."""
    for word, arrivals in serving.arrivals.items():
        files = start.tls.get(word)
        protocols = (GRPC_ALPN_PROTOCOL,) if word == "grpc" else ALPN_PROTOCOLS
        tls = None if files is None else server_context(files, protocols)
        if word == "grpc":
            yield partial(
                serve_relayed,
                partial(serving.open_upstream, word),
                replace(start.grpc, tls=tls),
                arrivals,
                serving.stop,
                limits=serving.limits,
                memory=serving.memory,
                failures=serving.failures,
                connections=serving.connections,
                linked=_grpc_linked(start, serving) if word in start.linked else None,
                on_call=serving.relayed.note,
            )
        else:
            yield partial(_serve_http, start, serving, word, tls)


def _grpc_linked(start: EdgeStart, serving: Serving) -> Linked:
    linking = serving.linking
    return Linked(linking.services("grpc", start.rules["grpc"]), linking.keys, linking.know)


async def _serve_http(
    start: EdgeStart,
    serving: Serving,
    word: str,
    tls: ssl.SSLContext | None,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    settings = start.http if word == "http" else replace(start.http, interface=Interface.OPENAI)
    upstreams = Upstreams(
        partial(serving.open_upstream, word),
        serving.relayed.note,
        most=settings.connections.max_connections,
        most_idle=min(MOST_IDLE, descriptor_limit() // _IDLE_SHARE),
    )
    on_limit = partial(serving.limits.count, "http")
    routes = route_table(settings.interface, has_console=settings.console, has_metrics=settings.metrics)
    relay = RelayApp(upstreams, serving.memory, on_limit, settings.body_timeout, settings.linger, routes)
    app: App = relay
    direct: LinkedInference | None = None
    if word in start.linked:
        linking = serving.linking
        services = linking.services(word, start.rules[word])
        app = LinkedApp(
            Linked(services, linking.keys, linking.know),
            settings,
            relay,
            has_texts="openai" in start.linked,
            keeps_responses=start.keeps_responses,
        )
        if word == "http":
            direct = LinkedInference.of(services, settings, linking.keys)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstreams.run)
        await serve_app(
            app,
            settings.host,
            settings.port,
            settings.connections,
            serving.stop,
            on_limit=on_limit,
            direct=direct,
            failures=serving.failures,
            memory=serving.memory,
            tls=tls,
            leaving=serving.leaving,
            counted=partial(serving.connections.of, word),
            arrivals=serving.arrivals[word],
            task_status=task_status,
        )
        nursery.cancel_scope.cancel()
