"""Response stream of one request to a decoupled model: the `Responder` that its backend gets.

Flow: backend → [response stream] → reply channel → caller. Owned by the batch runner, which ends the streams that are
open when the instance stops. `send` waits for a slow caller; cancelled, its response was not sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from actors.mail.messages import QueuedRequest
from actors.metrics.response_statistics import ResponseStatistics
from backends.interface import NotBegun, Rescheduled
from protocol.errors import ServerError, Unavailable
from protocol.messages import InferenceResponse

logger = logging.getLogger("trioton.model_instance")

# Responses that wait for a slow client before its model does; fewer where they are large (`waiting_responses`).
BUFFERED_RESPONSES = 64


@dataclass(eq=False, slots=True)
class ResponseStream:
    """Implements `backends.interface.Responder`. `ended` is called once, when the stream ends for whatever reason.
    Each response is counted in `statistics`. `first_response` is when the first response left, in seconds of Trio's
    clock. With `can_be_rescheduled` the error `Rescheduled` ends the stream, but not the request; without it
    `NotBegun` does."""

    item: QueuedRequest
    ended: Callable[[ResponseStream, ServerError | None], None]
    statistics: ResponseStatistics
    can_be_rescheduled: bool = False
    first_response: float | None = field(default=None, init=False)
    _is_open: bool = field(default=True, init=False)
    _has_final: bool = field(default=False, init=False)
    # Since when the next response is computed.
    _began: float = field(default_factory=trio.current_time, init=False)

    @property
    def is_cancelled(self) -> bool:
        return self.item.is_cancelled

    async def send(self, response: InferenceResponse) -> None:
        computed = trio.current_time()
        if self.send_nowait(response):
            await trio.lowlevel.checkpoint()
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the caller has gone, or it has ended
            await self._send(response)
        self._sent(response, computed)

    async def _send(self, response: InferenceResponse) -> None:
        """When there is room for it."""
        waiting = self.item.waiting
        if waiting is None:
            await self.item.stream.send(response)
            return
        await waiting.put_later(response)
        try:
            await self.item.stream.send(response)
        except BaseException:
            waiting.remove_last()
            raise

    def send_nowait(self, response: InferenceResponse) -> bool:
        if not self._is_open:
            return True
        computed = trio.current_time()
        if self.item.take_states is not None:
            failure = self.item.take_states(response)  # perhaps again: the second time there is nothing to take
            if failure is not None:
                self.close(failure)
                return True
        turn = self.item.turn
        try:
            if turn is not None and not turn.has_begun:
                turn.hold(response)
                if self.item.waiting is not None:
                    self.item.waiting.keep(response)
            elif not self._put(response):
                return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Unavailable as error:  # too much to hold
            self.close(error)
        self._sent(response, computed)
        return True

    def _put(self, response: InferenceResponse) -> bool:
        """False where there is no room for it."""
        item = self.item
        waiting = item.waiting
        if waiting is not None:
            if item.respond_at_once is not None and waiting.is_idle:
                try:
                    if item.respond_at_once(response):
                        return True
                except Exception as error:
                    logger.debug("a response is handed over again, to fail where its caller sees it", exc_info=error)
            if not waiting.put(response):
                return False
        try:
            self.item.stream.send_nowait(response)
        except trio.WouldBlock:
            if waiting is not None:
                waiting.remove_last()
            return False
        return True

    def close(self, error: ServerError | None = None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if not isinstance(error, Rescheduled if self.can_be_rescheduled else NotBegun):
            self.item.failure = error  # not sent: there may be no room for it, and it must not be lost
            self.item.stream.close()
            self._count_end(error)
        self.ended(self, error)

    def _sent(self, response: InferenceResponse, computed: float) -> None:
        now = trio.current_time()
        if self.first_response is None:
            self.first_response = now
        if not self._is_open:
            return
        if not self.item.is_cancelled:  # else its caller has gone, which counts once, at the end
            if response.outputs:
                self.statistics.count_response(
                    self.item.response_count, began=self._began, computed=computed, ended=now
                )
            else:
                self.statistics.count_empty(self.item.response_count, began=self._began, ended=now)
            self.item.response_count += 1
            self._began = now
        if response.is_final:
            self._has_final = True
            self.close()

    def _count_end(self, error: ServerError | None) -> None:
        """The final flag alone, or what came in place of a response."""
        index, began, now = self.item.response_count, self._began, trio.current_time()
        if self.item.is_cancelled:
            self.statistics.count_error(index, None, began=began, ended=now)
        elif error is not None:
            self.statistics.count_error(index, error, began=began, ended=now)
        elif not self._has_final:
            self.statistics.count_empty(index, began=began, ended=now)
