"""What the fake cores of both edges' tests give for a request whose answer comes by a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from protocol.core import ReplyChannel
from protocol.errors import Internal, ServerError
from protocol.messages import InferenceRequest, InferenceResponse


class FakeSubmitted:
    """Implements `protocol.core.Submitted`, and holds to it that it ends once."""

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request
        self.arrival = trio.current_time()
        self.ending = ""
        self._scope = trio.CancelScope()

    async def run(self, answer: Callable[[], Awaitable[InferenceResponse]], reply_to: ReplyChannel) -> None:
        with self._scope:
            try:
                reply_to.send_nowait(await answer())
            except ServerError as error:
                reply_to.send_nowait(error)
            except Exception as error:
                reply_to.send_nowait(Internal(f"internal error: {error}"))

    async def wait(self, answer: Callable[[], Awaitable[InferenceResponse]]) -> InferenceResponse:
        """As `run`, for a caller that waits."""
        try:
            response = await answer()
        except Exception:
            self.end()
            raise
        except BaseException:
            self.give_up()
            raise
        self.end()
        return response

    def end(self) -> None:
        assert not self.ending
        self.ending = "answered"

    def give_up(self) -> None:
        assert not self.ending
        self.ending = "given up"
        self._scope.cancel()
