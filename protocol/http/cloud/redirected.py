"""Redirected exchange: a request to a platform's path, run as a request to another path of the server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

import trio

from protocol.http.app import HttpApp
from protocol.http.connections import serve_app
from protocol.http.errors import ErrorForm
from protocol.http.exchange import App, Exchange
from protocol.http.reply import Reply
from protocol.http.wrapped import WrappedExchange
from protocol.reactor.arrivals import Arrivals

# Neither platform compresses: what proxies say of it is not for the server.
_IGNORED = frozenset((b"accept-encoding", b"content-encoding"))
# No route has it.
NOWHERE = b""


class RedirectedExchange(WrappedExchange):
    """Passes on to another exchange. Replies are not compressed, and bodies are taken as they come."""

    __slots__ = ("_headers", "_method", "_raw_path")

    def __init__(self, exchange: Exchange, raw_path: bytes, method: str = "") -> None:
        super().__init__(exchange)
        self._raw_path = raw_path
        self._method = method or exchange.method
        self._headers = {name: value for name, value in exchange.headers.items() if name not in _IGNORED}

    @property
    def method(self) -> str:
        return self._method

    @property
    def raw_path(self) -> bytes:
        return self._raw_path

    @property
    def query(self) -> bytes:
        return b""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        return self._headers


def path_part(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


def unknown_path(error: Exception) -> Reply:
    """The reply at paths that there are none of: the platforms' contracts have no 404 there."""
    return Reply(400)


UNKNOWN_PATHS: tuple[tuple[bytes, ErrorForm, bytes], ...] = ((b"", unknown_path, b""),)


async def serve_platform(
    app: App,
    inner: HttpApp,
    name: str,
    stop: trio.Event,
    *,
    leaving: trio.Event | None = None,
    arrivals: Arrivals | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a platform's application, which runs requests by `inner`, as `serve_app` does. Open connections are counted
    under `name`.

    Raises:
        OSError: the address cannot be listened on.
    """
    services, settings = inner.services, inner.settings
    await serve_app(
        app,
        settings.host,
        settings.port,
        settings.connections,
        stop,
        on_limit=partial(services.limits.count, "http"),
        failures=services.failures,
        memory=services.memory,
        leaving=leaving,
        counted=partial(services.connections.of, name),
        arrivals=arrivals,
        task_status=task_status,
    )
