"""Threads for work on the bodies of calls, in which large ones take turns.

That work is Python, for seconds with a body of some megabytes, which takes some twenty times its size. If each of many
had its thread, those would share the interpreter's lock with the server's loop, so that all small calls waited for
them, and fill the memory. So a call with a large body has a turn from its first work on to its inference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from protocol.http.exchange import HttpRequest

Made = TypeVar("Made")

# Bytes of a body.
LARGE_ABOVE = 1 << 18
_LARGE_AT_ONCE = 2
_TURNS: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("large bodies")


async def in_thread(request: HttpRequest, work: Callable[[], Made]) -> Made:
    """What `work` makes of the request's body. A client that leaves while it waits for its turn gives that up; the turn
    ends by `HttpRequest.end_turn`."""
    if len(request.body) > LARGE_ABOVE and request.turn is None:
        turns, borrower = _turns(), object()
        await turns.acquire_on_behalf_of(borrower)
        request.turn = partial(turns.release_on_behalf_of, borrower)
    return await trio.to_thread.run_sync(work)


def _turns() -> trio.CapacityLimiter:
    """That of this run of Trio."""
    try:
        return _TURNS.get()
    except LookupError:
        made = trio.CapacityLimiter(_LARGE_AT_ONCE)
        _TURNS.set(made)
        return made
