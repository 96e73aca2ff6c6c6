"""Streams the answer of a request: events, comments while nothing comes, and what fails."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from protocol.errors import Internal, ServerError, text_of
from protocol.http.exchange import ClientGone, HttpRequest
from protocol.http.handlers.failed_request import describe
from protocol.http.handlers.generate import EVENT_STREAM
from protocol.http.openai.streams.event_stream import EventStream, StreamForm
from protocol.http.reply import Headers
from protocol.log.tags import of_call

logger = logging.getLogger(__name__)


async def stream_events(
    request: HttpRequest,
    headers: Callable[[], Headers],
    run: Callable[[EventStream], Awaitable[bytes]],
    form: StreamForm,
) -> None:
    """Send the events of `run`, which returns what stands before the end of the stream. What it raises after the first
    event is the last event, without the end: official clients raise it, and others see no end.

    Raises:
        ServerError, Exception: what `run` raises before its first event.
    """
    events = EventStream(request.writer, lambda: (*EVENT_STREAM, *headers()), form.keep_alive)
    failures: list[Exception] = []
    last = b""

    async def keep_alive() -> None:
        try:
            await events.keep_alive(request.settings.openai.keep_alive)
        except Exception as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive)
        try:
            last = await run(events) + form.end
        except Exception as error:
            failures.append(error)
        events.stop()
    if failures:
        if not events.has_started or isinstance(failures[0], ClientGone):
            raise failures[0]
        last = _told(request, failures[0], form)
    await events.send(last)
    await events.end()


def _told(request: HttpRequest, error: Exception, form: StreamForm) -> bytes:
    if not isinstance(error, ServerError):
        model = "" if request.inference is None else request.inference.model_name
        extra = {"tags": of_call(request.origin, model=model)}
        logger.error("a stream of model '%s' failed", model, exc_info=error, extra=extra)
        error = Internal(f"internal error: {text_of(error)}")
    request.failure = error
    failed = partial(describe, request, request.path_parameters, request.arrival_ns, request.origin)
    request.services.failure_log.note(f"{form.name} stream", form.status(error), error, failed)
    return form.error(error, request.request_id.decode())
