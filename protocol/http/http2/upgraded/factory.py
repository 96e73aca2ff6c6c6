"""What the upgraded connections of one listener share. Nothing of hypercorn is imported before the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from protocol.http.exchange import App
from protocol.http.settings import ConnectionLimits, OnLimit
from protocol.limits.request_memory import RequestMemory
from protocol.reactor.transport import Wire

if TYPE_CHECKING:
    from protocol.http.http2.upgraded.connection import UpgradedConnection
    from protocol.http.http2.upgraded.hypercorn import HypercornConnections


class UpgradedConnections:
    """Makes upgraded connections; the caller runs each, and closes its transport."""

    def __init__(self, app: App, limits: ConnectionLimits, on_limit: OnLimit, memory: RequestMemory) -> None:
        self._app = app
        self._memory = memory
        self._limits = limits
        self._on_limit = on_limit
        self._importing = trio.Lock()
        self._made: HypercornConnections | None = None

    async def over(self, wire: Wire) -> UpgradedConnection:
        """Made at once but for the first time, when it waits for an import in a thread."""
        if self._made is None:
            async with self._importing:
                if self._made is None:
                    made = await trio.to_thread.run_sync(_hypercorn_connections)
                    self._made = made(self._app, self._limits, self._on_limit, self._memory)
        return self._made.over(wire)

    async def end(self) -> None:
        """The server stops: hypercorn closes connections instead of keeping them alive."""
        if self._made is not None:
            await self._made.end()


def _hypercorn_connections() -> type[HypercornConnections]:
    """Some megabytes, and tens of milliseconds."""
    from protocol.http.http2.upgraded.hypercorn import HypercornConnections

    return HypercornConnections
