"""The metrics endpoint: `GET /metrics` in Prometheus' text format or in OpenMetrics, on a port of its own.

Source: reference section "Metrics endpoint". One difference: a path that does not exist is answered 404, where Triton
answers 200 with an empty body, which a scraper with a mistyped path would take for a server without metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import trio

from protocol.access.categories import Category
from protocol.access.control import AccessControl
from protocol.errors import Internal, NotFound, ServerError
from protocol.failures import CallbackFailures
from protocol.http.connections import serve_app
from protocol.http.errors import MethodNotAllowed, error_reply
from protocol.http.exchange import Exchange, header_text
from protocol.http.metrics_page import metrics_reply
from protocol.http.reply import Reply
from protocol.http.settings import MetricsSettings
from protocol.limits.counter import LimitCounter
from protocol.metrics_text import MetricsText
from protocol.open_connections import Count

__all__ = ["MetricsSettings", "serve_metrics"]

logger = logging.getLogger(__name__)

_LINGER = 1.0  # seconds for a client that sends a body where none belongs


async def serve_metrics(
    metrics: MetricsText,
    settings: MetricsSettings,
    stop: trio.Event,
    *,
    access: AccessControl | None = None,
    limits: LimitCounter | None = None,
    leaving: trio.Event | None = None,
    failures: CallbackFailures | None = None,
    counted: Callable[[Count], AbstractContextManager[None]] = lambda count: nullcontext(),
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `metrics` to each request that `access` lets pass, until `stop` is set.

    `leaving` and `counted` are as in `serve_app`. What the limits of connections refuse is counted in `limits`, with
    the protocol "metrics"; what fails by a defect in `failures`.

    Started with the bound (host, port). Cancelling closes all connections.

    Raises:
        OSError: the address cannot be listened on.
    """

    async def app(exchange: Exchange) -> None:
        reply = await _answer(exchange, metrics, access)
        if exchange.may_have_body:
            await exchange.reply_early(reply, linger=_LINGER)
        else:
            await exchange.reply(reply)

    counter = limits or LimitCounter()
    await serve_app(
        app,
        settings.host,
        settings.port,
        settings.connections,
        stop,
        on_limit=partial(counter.count, "metrics"),
        failures=failures,
        tls=settings.tls,
        leaving=leaving,
        counted=counted,
        task_status=task_status,
    )


async def _answer(exchange: Exchange, metrics: MetricsText, access: AccessControl | None) -> Reply:
    if exchange.raw_path not in (b"/metrics", b"/metrics/"):
        return error_reply(NotFound("Not Found"))
    try:
        if access is not None:
            access.check(Category.METRICS, lambda name: header_text(exchange.headers, name))
        if exchange.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(("GET", "HEAD"))
        return await metrics_reply(metrics, exchange.headers)
    except ServerError as exc:
        return error_reply(exc)
    except Exception as exc:
        logger.exception("rendering the metrics failed")
        return error_reply(Internal(f"rendering the metrics failed: {exc}"))
