"""Speaker: whoever writes a log line in a worker, as the server is told of it."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

from .connection import Connection
from .session import session


class Speaker(NamedTuple):
    """`work` is the number of what the line belongs to (a batch), 0 for none."""

    connection: Connection
    work: int


FindSpeaker = Callable[[], Optional[Speaker]]


def speaker_of_session() -> Speaker | None:
    """Whoever calls, where there is a server that can be told: there is none in a unit test, in a process that the
    model has forked, or while a fork server loads it."""
    here = session()
    if here is None or not here.connection.is_usable:
        return None
    batch = here.logging_batch()
    return Speaker(here.connection, 0 if batch is None else batch.number)
