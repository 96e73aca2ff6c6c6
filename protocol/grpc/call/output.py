"""The interface through which a call sends on its connection: data, trailers, window updates.

stream -> [output]: outgoing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from protocol.grpc.call.headers import Header
from protocol.limits.answer_memory import AnswerMemory
from protocol.messages import Buffer
from protocol.reactor.replies import Replies


class Output(Protocol):
    """The output of one connection; streams are named by their numbers. `taken` are bytes that the peer may send again,
    over all streams; at the end of a burst it is told of them when they are worth it. `answers` counts the whole
    responses that wait for the peer."""

    taken: int
    answers: AnswerMemory

    @property
    def peer(self) -> str:
        """The client's address."""

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Let the peer send `size` bytes more."""

    def acknowledge_stream(self, stream_id: int, size: int) -> None:
        """Let the peer send `size` bytes more on the stream, as far as that goes; they are `taken`."""

    async def send_message(
        self, stream_id: int, headers: Sequence[Header], parts: Sequence[Buffer], *, is_counted: bool
    ) -> None:
        """Send a message, behind headers if there are any. Returns when all of it is on its way to the writer; waits
        while the peer reads slowly, and then counts in `answers` if it `is_counted`.

        Raises:
            Overloaded: it would have to wait, and there is no memory for that. Nothing has been sent.
        """

    def send_at_once(
        self, stream_id: int, headers: Sequence[Header], parts: Sequence[Buffer], replies: Replies
    ) -> bool:
        """Send data, after headers if there are any; written with all replies of the same burst. False, and nothing is
        done, where it would have to wait."""

    def flush(self) -> None: ...

    def count_refusal(self, limit: str) -> None:
        """Count a refusal by a limit."""
