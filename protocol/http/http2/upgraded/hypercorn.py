"""What the upgraded connections of one listener share of hypercorn: its configuration, its context and its ASGI
application."""

from __future__ import annotations

import logging

from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from protocol.http.exchange import App
from protocol.http.http2.upgraded.connection import UpgradedConnection
from protocol.http.http2.upgraded.exchange import as_asgi
from protocol.http.settings import ConnectionLimits, OnLimit
from protocol.limits.request_memory import RequestMemory
from protocol.reactor.transport import Wire

logger = logging.getLogger(__name__)

_NEVER = 2**31


class HypercornConnections:
    """Made by `factory` for the first upgraded connection."""

    def __init__(self, app: App, limits: ConnectionLimits, on_limit: OnLimit, memory: RequestMemory) -> None:
        self._app = app
        self._memory = memory
        self._limits = limits
        self._on_limit = on_limit
        self._context = WorkerContext(None)
        self._config = Config()
        self._config.errorlog = logger  # its default is a handler of its own on stderr
        self._config.accesslog = None
        self._config.include_server_header = False
        self._config.keep_alive_max_requests = limits.max_requests_per_connection or _NEVER

    def over(self, wire: Wire) -> UpgradedConnection:
        asgi = as_asgi(self._app, self._memory, self._on_limit)
        return UpgradedConnection(asgi, self._config, self._context, self._limits, self._on_limit, wire)

    async def end(self) -> None:
        await self._context.terminated.set()
