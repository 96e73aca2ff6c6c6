"""One accepted HTTP connection: negotiates the version (ALPN, prior knowledge, upgrade) and serves it until it closes.

TLS names the version in its handshake (ALPN). Without TLS a connection begins in HTTP/1, and may change to HTTP/2 with
the client's first bytes (prior knowledge), or with a request that asks for it (`Upgrade`).
"""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from protocol.failures import CallbackFailures
from protocol.http.date import DateHeader
from protocol.http.direct_infer import DirectInference
from protocol.http.exchange import App
from protocol.http.http1.connection import Http1
from protocol.http.http1.events import ChangeToHttp2
from protocol.http.http2.connection import Http2Connection
from protocol.http.http2.upgraded.factory import UpgradedConnections
from protocol.http.settings import LEAVE_SECONDS, ConnectionLimits, OnLimit
from protocol.limits.request_memory import RequestMemory
from protocol.reactor.tls_wire import TlsWire
from protocol.reactor.transport import PlainWire, Wire

if TYPE_CHECKING:
    from protocol.http.http2.upgraded.connection import UpgradedConnection


@dataclass(frozen=True, slots=True)
class Served:
    """What all connections of a listener share; `on_limit` is called with the name of each limit that refuses
    something."""

    app: App
    limits: ConnectionLimits
    on_limit: OnLimit
    date: DateHeader
    upgraded: UpgradedConnections
    memory: RequestMemory
    direct: DirectInference | None = None
    failures: CallbackFailures | None = None


class Connection:
    """One client's. At `retires_at` (seconds of Trio's clock) it is as old as it may become. `peer` is the client's
    address where the socket does not know it."""

    __slots__ = (
        "_has_ended",
        "_is_leaving",
        "_protocol",
        "_retired",
        "_retires_at",
        "_running",
        "_served",
        "_shaking_hands",
        "wire",
    )

    def __init__(
        self,
        served: Served,
        stream: trio.SocketStream,
        retires_at: float = math.inf,
        peer: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._served = served
        self._retires_at = retires_at
        self._retired: Http1 | Http2Connection | UpgradedConnection | None = None
        self.wire: Wire = PlainWire(stream, peer) if tls is None else TlsWire(stream, tls, peer)
        self._running = trio.CancelScope()
        self._shaking_hands = trio.CancelScope()
        self._protocol: Http1 | Http2Connection | UpgradedConnection | None = None
        self._is_leaving = False
        self._has_ended = False

    @property
    def stream_count(self) -> int:
        """The requests under way over HTTP/2, but for a connection that was upgraded from HTTP/1."""
        return self._protocol.stream_count if isinstance(self._protocol, Http2Connection) else 0

    async def run(self) -> None:
        """Serve until either side ends the connection; what still runs for it then is cancelled. The caller closes the
        transport."""
        with self._running:
            await self._run()

    def cancel(self) -> None:
        """End the connection at once, and cancel what runs."""
        self._running.cancel()

    async def _run(self) -> None:
        agreed = ""
        with self._shaking_hands:
            agreed_or_none = await self._shake_hands()
            if agreed_or_none is None:
                return
            agreed = agreed_or_none
        change = ChangeToHttp2(b"") if agreed == "h2" else await self._run_http1()
        if change is None:
            return
        if change.settings is None:
            http2 = self._http2(change.rest)
            del change  # what has come already may be large, and the connection is long
            if self._has_ended:
                await http2.drain()
            await http2.run()
        elif not self._has_ended:
            upgraded = await self._served.upgraded.over(self.wire)
            if self._has_ended:  # meanwhile
                return
            self._protocol = upgraded
            await upgraded.run(change.rest, change.headers, change.settings)

    async def _run_http1(self) -> ChangeToHttp2 | None:
        served = self._served
        http1 = Http1(
            served.app,
            self.wire,
            served.limits,
            served.on_limit,
            served.date,
            direct=served.direct,
            may_upgrade=not isinstance(self.wire, TlsWire),
        )
        self._protocol = http1
        if self._is_leaving:
            http1.leave()
        return await http1.run()

    def _http2(self, begun: bytes) -> Http2Connection:
        served = self._served
        http2 = Http2Connection(
            served.app,
            self.wire,
            served.limits,
            served.on_limit,
            served.date,
            served.memory,
            direct=served.direct,
            failures=served.failures,
        )
        http2.begin_with(begun)
        self._protocol = http2
        return http2

    def check_time(self, now: float) -> None:
        """End a wait that has exceeded its timeout."""
        if self._protocol is not None:
            self._protocol.check_time(now)

    def is_to_retire(self, now: float) -> bool:
        """Whether it has become too old, and was not told so in its present version of HTTP."""
        return now >= self._retires_at and self._protocol is not self._retired

    async def retire(self) -> None:
        """Have the client open another connection for its next requests, without losing one that it has sent: over
        HTTP/1 the next response says `connection: close`, over HTTP/2 there is a GOAWAY. `run` returns then. May wait
        for the client to read."""
        self._retired = protocol = self._protocol
        if isinstance(protocol, Http1):
            protocol.retire()
        elif protocol is not None:
            await protocol.drain()

    def leave(self) -> None:
        """The server stops: over HTTP/1 the next response says `connection: close`."""
        self._is_leaving = True
        if isinstance(self._protocol, Http1):
            self._protocol.leave()

    async def end(self) -> None:
        """As `drain`, once no more connections are accepted. What begins in HTTP/2 from then on is drained at once."""
        self._has_ended = True
        await self.drain()

    async def drain(self) -> None:
        """Take no more requests than the client has sent when it learns of it, finish them, and let `run` return."""
        self.leave()
        if self._protocol is None:
            self._shaking_hands.deadline = min(self._shaking_hands.deadline, trio.current_time() + LEAVE_SECONDS)
        elif not isinstance(self._protocol, Http1):
            await self._protocol.drain()

    async def _shake_hands(self) -> str | None:
        """The protocol that ALPN has chosen; empty without any. None where there is no agreement, or none in time."""
        if not isinstance(self.wire, TlsWire):
            return ""
        with trio.move_on_after(self._served.limits.header_timeout):
            return await self.wire.shake_hands()
        self._served.on_limit("header_timeout")
        return None
