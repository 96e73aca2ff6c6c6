"""A gRPC server that relays every call."""

from __future__ import annotations

import trio

from protocol.failures import CallbackFailures
from protocol.grpc.connection.calls import Shared
from protocol.grpc.relay.handlers import EveryMethod, Relay
from protocol.grpc.relay.upstream import Open, Upstreams
from protocol.grpc.server import serve_calls
from protocol.grpc.settings import GrpcSettings
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import Arrivals
from protocol.reactor.drivers import the_poller
from protocol.reactor.replies import Replies


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
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """As `serve_grpc`, with the core's edge behind `open_upstream` to answer the calls."""
    upstreams = Upstreams(open_upstream)
    shared = Shared(
        EveryMethod(Relay(upstreams, settings.compression_level).handler()),
        settings.limits,
        limits,
        memory,
        threads=trio.CapacityLimiter(settings.threads),
        poller=the_poller(),
        failures=failures,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstreams.run)
        await serve_calls(
            shared, settings, Replies(failures), connections, stop, arrivals=arrivals, task_status=task_status
        )
        nursery.cancel_scope.cancel()
