"""The responses of one request to a decoupled model, on their way from the backend to the request's caller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from actors.messages import QueuedRequest
from backends.interface import Rescheduled
from protocol.errors import ServerError, Unavailable
from protocol.messages import InferenceResponse

# Responses that wait for a slow client before its model does.
BUFFERED_RESPONSES = 64


@dataclass(eq=False, slots=True)
class ResponseStream:
    """Implements `backends.interface.Responder`. `ended` is told once, when the stream ends for whatever reason.
    `first_response` is when the first response left, in seconds of Trio's clock. With `can_be_rescheduled` the error
    `Rescheduled` ends the stream, but not the request."""

    item: QueuedRequest
    ended: Callable[[ResponseStream, ServerError | None], None]
    can_be_rescheduled: bool = False
    first_response: float | None = field(default=None, init=False)
    _is_open: bool = field(default=True, init=False)

    @property
    def is_cancelled(self) -> bool:
        return self.item.is_cancelled

    async def send(self, response: InferenceResponse) -> None:
        if self.send_nowait(response):
            await trio.lowlevel.checkpoint()
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the caller has gone, or it has ended
            await self.item.reply.send(response)
        self._sent(response)

    def send_nowait(self, response: InferenceResponse) -> bool:
        if not self._is_open:
            return True
        turn = self.item.turn
        try:
            if turn is not None and not turn.has_begun:
                turn.hold(response)
            else:
                self.item.reply.send_nowait(response)
        except trio.WouldBlock:
            return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Unavailable as error:  # too much to hold
            self.close(error)
        self._sent(response)
        return True

    def close(self, error: ServerError | None = None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if not (self.can_be_rescheduled and isinstance(error, Rescheduled)):
            self.item.failure = error  # not sent: there may be no room for it, and it must not be lost
            self.item.reply.close()
        self.ended(self, error)

    def _sent(self, response: InferenceResponse) -> None:
        if self.first_response is None:
            self.first_response = trio.current_time()
        if response.is_final:
            self.close()
