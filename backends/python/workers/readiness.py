"""Readiness probe: `is_ready` of a model, one call at a time, shared by all who ask."""

from __future__ import annotations

import logging

import trio

from backends.python.wire.frames import BrokenFrame, Frame, decode_head, encode
from backends.python.wire.heads import CheckedHead
from backends.python.worker.trioton_worker.frames import CHECK, CHECKED
from backends.python.workers.link import WorkerLink

# How long a model may take to answer.
CHECK_SECONDS = 5.0

logger = logging.getLogger("trioton.backends.python")


class Readiness:
    """For one worker whose model has `is_ready`."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._asked: trio.Event | None = None
        self._asked_at = 0.0
        self._last: CheckedHead | None = None
        self._has_ended = False
        link.handlers[CHECKED] = self._checked
        link.at_end.append(self._end)

    async def check(self) -> bool:
        """What the model answers; False if it takes too long, fails, or answers something else. The log has why. A
        worker that has ended is not asked."""
        if self._has_ended:
            return False
        is_first = self._asked is None
        if self._asked is None:
            self._asked, self._asked_at = trio.Event(), trio.current_time()
            self._link.channel.post(encode(CHECK, {}))
        with trio.move_on_after(CHECK_SECONDS) as waiting:
            await self._asked.wait()
        if waiting.cancelled_caught:
            self._log(f"Timed out waiting for {'user-defined' if is_first else 'in-flight'} is_ready() response")
            return False
        head = self._last
        if head is None:  # the worker has ended
            return False
        if head.error:
            self._log(head.error)
        elif not head.ready:
            self._log(f"Model '{self._link.name}' is not ready (user-defined check failed).")
        return head.ready and not head.error

    @property
    def owed_for(self) -> float:
        """For how many seconds the model has not answered; 0 where it was not asked."""
        return 0.0 if self._asked is None else trio.current_time() - self._asked_at

    def _log(self, text: str) -> None:
        logger.warning("%s: %s", self._link.name, text)

    def _checked(self, frame: Frame) -> None:
        if self._asked is None:
            raise BrokenFrame("it says whether it is ready, but was not asked")
        self._last = decode_head(frame, CheckedHead)
        self._asked.set()
        self._asked = None

    def _end(self) -> None:
        self._last, self._has_ended = None, True
        if self._asked is not None:
            self._asked.set()
