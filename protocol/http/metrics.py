"""The metrics listener: `GET /metrics` in Prometheus' text form, on a port of its own.

Source: reference section "Metrics endpoint". One difference: a path that does not exist is answered 404, where
Triton answers 200 with an empty body, which a scraper with a mistyped path would take for a server without metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from protocol.access.categories import Category
from protocol.access.control import AccessControl
from protocol.errors import Internal, NotFound, ServerError
from protocol.http.connections import serve_app
from protocol.http.errors import MethodNotAllowed, error_reply
from protocol.http.exchange import Reply
from protocol.http.settings import MetricsSettings
from protocol.http.transport import first_headers, has_body, header_text, send_early_reply, send_reply
from protocol.limits import LimitCounter

__all__ = ["MetricsSettings", "serve_metrics"]

logger = logging.getLogger(__name__)

_LINGER = 1.0  # seconds for a client that sends a body where none belongs


async def serve_metrics(
    render: Callable[[], bytes],
    settings: MetricsSettings,
    stop: trio.Event,
    *,
    access: AccessControl | None = None,
    limits: LimitCounter | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve what `render` returns, called anew for each request that `access` lets pass, until `stop` is set.

    What the limits of connections refuse is counted in `limits`, with the protocol "metrics".

    Started with the bound (host, port). Cancelling closes all connections.

    Raises:
        OSError: the address cannot be listened on.
    """

    async def app(scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        headers = first_headers(scope)
        reply = _answer(scope, headers, render, access)
        if has_body(scope, headers):
            await send_early_reply(reply, scope, receive, send, linger=_LINGER)
        else:
            await send_reply(reply, send)

    counter = limits or LimitCounter()
    await serve_app(
        app,
        settings.host,
        settings.port,
        settings.connections,
        stop,
        on_limit=partial(counter.count, "metrics"),
        tls=settings.tls,
        task_status=task_status,
    )


def _answer(
    scope: HTTPScope, headers: Mapping[bytes, bytes], render: Callable[[], bytes], access: AccessControl | None
) -> Reply:
    if scope["raw_path"] not in (b"/metrics", b"/metrics/"):
        return error_reply(NotFound("Not Found"))
    try:
        if access is not None:
            access.check(Category.METRICS, lambda name: header_text(headers, name))
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed(("GET", "HEAD"))
        text = render()
    except ServerError as exc:
        return error_reply(exc)
    except Exception as exc:
        logger.exception("rendering the metrics failed")
        return error_reply(Internal(f"rendering the metrics failed: {exc}"))
    return Reply(headers=((b"content-type", b"text/plain; charset=utf-8"),), body=text)
