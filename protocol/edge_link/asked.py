"""What an edge process has asked the core for and waits for: requests, streams and calls."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol, TypeAlias

import msgspec

from protocol.core import ReplyChannel, Respond, RespondsAtOnce
from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.records import WINDOW_BYTES, WINDOW_RESPONSES
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.sync.wakeup import Wakeup

NO_REQUEST = InferenceRequest("", [])


class Abandons(Protocol):
    def abandon(self, number: int) -> None:
        """No answer to this is wanted any more."""


class LinkedSubmission(msgspec.Struct, eq=False):
    """Implements `protocol.core.Submitted`."""

    request: InferenceRequest
    arrival: float
    number: int
    reply_to: ReplyChannel
    owner: Abandons

    def end(self) -> None:
        pass

    def give_up(self) -> None:
        self.owner.abandon(self.number)

    def fail(self, error: ServerError) -> None:
        self.reply_to.send_nowait(error)


class PendingCall(Wakeup):
    """A call, by its name; or the reply channel of a request whose caller waits."""

    __slots__ = ("_reply", "name")

    request = NO_REQUEST

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self._reply: list[Any] = []

    def send_nowait(self, value: Any, /) -> None:
        """Its result, or error."""
        self._reply.append(value)
        self.wake()

    def fail(self, error: ServerError) -> None:
        self.send_nowait(error)

    async def reply(self) -> Any:
        while not self._reply:
            await self.wait()
        return self._reply[0]


class PendingStream:
    """A request that is answered with any number of responses, for the task that waits for them.

    A response that comes while the task waits goes on at once, without it, where `respond` can take it.
    """

    def __init__(self, request: InferenceRequest, respond: Respond) -> None:
        self.request = request
        self.outcome: bool | ServerError | None = None
        self._at_once = respond if isinstance(respond, RespondsAtOnce) else None
        self._responses: deque[tuple[InferenceResponse, int]] = deque()
        self._is_idle = False  # its task waits here, and for nothing else
        self._arrived = Wakeup()
        self._passed = 0
        self._passed_bytes = 0

    def take(self, response: InferenceResponse, size: int) -> bool:
        """The next response, of so many bytes; whether it was passed on already.

        Raises:
            BrokenFrame: it was not to be sent yet.
        """
        if self._is_idle and not self._responses and self._at_once is not None:
            try:
                if self._at_once.respond_at_once(response):
                    return True
            except Exception:  # the task meets it again
                pass
        if len(self._responses) > WINDOW_RESPONSES:
            raise BrokenFrame("it sent more responses of a stream than there is room for")
        self._responses.append((response, size))
        self._wake()
        return False

    def end(self, outcome: bool | ServerError) -> None:
        """No more responses come."""
        self.outcome = outcome
        self._wake()

    def fail(self, error: ServerError) -> None:
        self.end(error)

    async def next(self) -> tuple[InferenceResponse, int] | None:
        """The next response with its size, once there is one; None behind the last."""
        while not self._responses and self.outcome is None:
            self._is_idle = True
            try:
                await self._arrived.wait()
            finally:
                self._is_idle = False
        return self._responses.popleft() if self._responses else None

    def note_passed(self, size: int) -> bool:
        """A response of so many bytes was passed on; whether the core should be told by now."""
        self._passed += 1
        self._passed_bytes += size
        return self._passed * 2 >= WINDOW_RESPONSES or self._passed_bytes * 2 >= WINDOW_BYTES

    def take_passed(self) -> tuple[int, int]:
        """How many responses and bytes the core is to be told of."""
        found = self._passed, self._passed_bytes
        self._passed = self._passed_bytes = 0
        return found

    def _wake(self) -> None:
        self._is_idle = False
        self._arrived.wake()


Asked: TypeAlias = LinkedSubmission | PendingStream | PendingCall
