"""The main HTTP service in one call: listen, serve the core, and drain at the end."""

from __future__ import annotations

from functools import partial

import trio

from protocol.http.app import HttpApp
from protocol.http.connections import serve_app
from protocol.http.direct_infer import DirectInference
from protocol.http.routes import route_table
from protocol.http.settings import ConnectionLimits, HttpSettings, Interface
from protocol.reactor.arrivals import Arrivals
from protocol.services import EdgeServices

__all__ = ["ConnectionLimits", "HttpSettings", "serve_http"]


async def serve_http(
    services: EdgeServices,
    settings: HttpSettings,
    stop: trio.Event,
    *,
    leaving: trio.Event | None = None,
    arrivals: Arrivals | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve over HTTP until `stop` is set and every request in flight has its answer; `leaving` and
    `arrivals` are as in `serve_app`.

    Started with the bound (host, port) once connections are accepted. There is no deadline on draining: the caller's
    cancel scope is one. Cancelling closes all connections and cancels what they were waiting for.

    Raises:
        OSError: the address cannot be listened on.
    """
    app = HttpApp(
        services,
        settings,
        route_table(settings.interface, has_console=settings.console, has_metrics=settings.metrics),
    )
    await serve_app(
        app,
        settings.host,
        settings.port,
        settings.connections,
        stop,
        on_limit=partial(services.limits.count, "http"),
        direct=DirectInference(app) if settings.has_fast_path else None,
        failures=services.failures,
        memory=services.memory,
        tls=settings.tls,
        reuse_port=settings.reuse_port,
        leaving=leaving,
        counted=partial(services.connections.of, "openai" if settings.interface is Interface.OPENAI else "http"),
        arrivals=arrivals,
        task_status=task_status,
    )
