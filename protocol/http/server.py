"""The main HTTP service as one call: listen, serve the core, drain."""

from __future__ import annotations

import trio

from protocol.core import InferenceCore
from protocol.http.app import HttpApp
from protocol.http.connections import serve_app
from protocol.http.settings import ConnectionLimits, HttpSettings

__all__ = ["ConnectionLimits", "HttpSettings", "serve_http"]


async def serve_http(
    core: InferenceCore,
    settings: HttpSettings,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the core over HTTP until `stop` is set and every request in flight has its answer.

    Started with the bound (host, port) once connections are accepted. There is no deadline on draining: the caller's
    cancel scope is one. Cancelling closes all connections and cancels what they were waiting for.

    Raises:
        OSError: the address cannot be listened on.
    """
    await serve_app(
        HttpApp(core, settings), settings.host, settings.port, settings.connections, stop, task_status=task_status
    )
