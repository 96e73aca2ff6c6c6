"""Event stream of the console: a snapshot, and then once a second what has changed.

A reader that is slower than that misses some, and gets a whole snapshot in place of them.
"""

from __future__ import annotations

from functools import partial

import trio

from protocol.access.categories import Category
from protocol.console.interface import Tick, Viewer
from protocol.http.console.guard import NO_STORE, console_of
from protocol.http.exchange import BodyWriter, HttpRequest, header_text
from protocol.http.reply import Headers, Reply

CATEGORY = Category.STATISTICS
KEEP_ALIVE_SECONDS = 15.0
# For so long a viewer that has to leave may read what it is being sent.
LEAVE_SECONDS = 5.0
_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
    *NO_STORE,
)


async def events(request: HttpRequest) -> Reply | None:
    """Until the client leaves, its key allows it no longer, it has to make room for another, or the server stops."""
    console = console_of(request)
    with console.viewer() as viewer:
        is_whole = False
        await request.writer.start(200, _HEADERS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_leave_when_refused, request, viewer)
            nursery.start_soon(_cut_off, viewer, nursery.cancel_scope)
            await _send_all(viewer, request.writer)
            is_whole = True
            nursery.cancel_scope.cancel()
    if is_whole:  # else a part of an event may be out, and nothing can follow it
        await request.writer.end()
    return None


async def _send_all(viewer: Viewer, writer: BodyWriter) -> None:
    last: int | None = None
    while True:
        found: Tick | None = None
        with trio.move_on_after(KEEP_ALIVE_SECONDS) as waiting:
            found = await viewer.next()
        if waiting.cancelled_caught:
            await writer.send(b": \n\n")
            continue
        if found is None:
            return
        if last is not None and found.number == last + 1:
            await writer.send(b"event: changes\ndata: %b\n\n" % found.changes)
        else:
            await writer.send(b"event: snapshot\ndata: %b\n\n" % found.whole)
        last = found.number


async def _leave_when_refused(request: HttpRequest, viewer: Viewer) -> None:
    access = request.services.access
    if not access.is_open:
        await access.until_refused(CATEGORY, partial(header_text, request.headers))
        viewer.leave()


async def _cut_off(viewer: Viewer, scope: trio.CancelScope) -> None:
    await viewer.until_left()
    await trio.sleep(LEAVE_SECONDS)
    scope.cancel()
