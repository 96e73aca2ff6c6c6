"""Reply stream: the responses of one request to a decoupled model, with credits as flow control.

Flow: worker → batches → [reply stream] → responder. Most responses go on at once; while the client is slow they wait
here, no more of them than the worker has credit for, and a task gives them on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from backends.interface import Responder
from backends.python.wire.frames import BrokenFrame, encode
from backends.python.worker.trioton_worker.frames import CREDIT, UNTAKEN_BYTES, UNTAKEN_RESPONSES
from backends.python.workers.link import WorkerLink
from protocol.errors import ServerError
from protocol.messages import InferenceResponse

# The worker is told of its credit after so many responses or bytes: less often would stop it, more often costs.
_RESPONSES_AT_ONCE = UNTAKEN_RESPONSES // 2
_BYTES_AT_ONCE = UNTAKEN_BYTES // 4


class ReplyStream:
    """`ended` is called once, when the request is over."""

    def __init__(
        self, link: WorkerLink, batch: int, index: int, responder: Responder, ended: Callable[[], None]
    ) -> None:
        self._link = link
        self._place = {"batch": batch, "index": index}
        self._responder = responder
        self._ended = ended
        self._waiting: deque[tuple[InferenceResponse, int]] = deque()
        self._taken = 0
        self._taken_size = 0
        self._is_over = False  # nothing more is passed on
        self._is_complete = False  # the worker has said its last
        self._error: ServerError | None = None

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_cancelled(self) -> bool:
        return self._responder.is_cancelled

    def put(self, response: InferenceResponse, size: int) -> None:
        """Pass one response on, `size` bytes long. Raises BrokenFrame for one without credit."""
        if len(self._waiting) + self._taken >= UNTAKEN_RESPONSES:
            raise BrokenFrame("it sent more responses to a request than it had credit for")
        if self._is_over or self._is_complete:
            self._take(size)
        elif self._waiting or not (self._responder.is_cancelled or self._responder.send_nowait(response)):
            self._waiting.append((response, size))
            if len(self._waiting) == 1:
                self._link.spawn(self._pass_on)
        else:
            self._take(size)
        if response.is_final:
            self.complete()

    def complete(self, error: ServerError | None = None) -> None:
        """No more responses follow those that were put."""
        if self._is_complete:
            return
        self._is_complete, self._error = True, error
        if not self._waiting:
            self._finish()

    def fail(self, error: ServerError) -> None:
        """End the request with an error."""
        self._is_complete, self._error = True, error
        self._finish()

    async def _pass_on(self) -> None:
        while self._waiting and not self._is_over:
            response, size = self._waiting[0]
            await self._responder.send(response)
            self._waiting.popleft()
            self._take(size)
        if self._is_complete:
            self._finish()

    def _take(self, size: int) -> None:
        self._taken += 1
        self._taken_size += size
        if self._taken >= _RESPONSES_AT_ONCE or self._taken_size >= _BYTES_AT_ONCE:
            self._link.channel.post(encode(CREDIT, {**self._place, "count": self._taken}))
            self._taken = self._taken_size = 0

    def _finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._responder.close(self._error)
            # It knows the batch: a cycle, which would keep all tensors until it is collected.
            ended, self._ended = self._ended, _nothing
            ended()


def _nothing() -> None:
    pass
