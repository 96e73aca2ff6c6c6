"""A gRPC server that relays every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from protocol.failures import CallbackFailures
from protocol.grpc.access import UNLOGGED
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.connection.calls import Shared
from protocol.grpc.inference.direct_infer import DirectInfer
from protocol.grpc.relay.handlers import EveryMethod, Relay
from protocol.grpc.relay.linked import LinkedInference
from protocol.grpc.relay.upstream import Open, Upstreams
from protocol.grpc.server import serve_calls
from protocol.grpc.settings import GrpcSettings
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import Arrivals
from protocol.reactor.drivers import the_poller
from protocol.reactor.replies import Replies
from protocol.services import Linked


async def serve_relayed(
    open_upstream: Open,
    settings: GrpcSettings,
    arrivals: Arrivals,
    stop: trio.Event,
    *,
    limits: LimitCounter,
    memory: RequestMemory,
    failures: CallbackFailures,
    connections: OpenConnections,
    linked: Linked | None = None,
    on_call: Callable[[], None] = lambda: None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """As `serve_grpc`, with the core's edge behind `open_upstream` to answer the calls; inference is run by `linked`,
    if it is there. `on_call` is called for each call that the core's edge answers."""
    upstreams = Upstreams(open_upstream, on_call)
    replies = Replies(failures)
    relay = Relay(upstreams, settings.compression_level)
    templates = RequestTemplates()
    shared = Shared(
        EveryMethod(relay.handler()),
        settings.limits,
        limits,
        memory,
        threads=trio.CapacityLimiter(settings.threads),
        poller=the_poller(),
        failures=failures,
    )
    if linked is not None:
        services = linked.services
        own = LinkedInference(linked, settings, templates, replies, relay).handlers()
        shared = replace(
            shared,
            handlers=EveryMethod(relay.handler(), own),
            direct=DirectInfer.of(services, settings, templates, replies),
            flush=services.core.flush,
            failure_log=services.failure_log,
            request_ids=services.request_ids,
            key_name=services.access.key_name,
            access_log=services.access_log,
            unlogged=UNLOGGED,
        )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstreams.run)
        await serve_calls(shared, settings, replies, connections, stop, arrivals=arrivals, task_status=task_status)
        nursery.cancel_scope.cancel()
