"""Reorder buffer of `preserve_ordering`: replies leave in the order of the requests, over all instances of a model.

Owned by the scheduler. Plain and synchronous; its memory is bounded by the requests that the scheduler holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from actors.mail.messages import QueuedRequest
from actors.mail.reply_slot import Reply


@dataclass(eq=False, slots=True)
class _ExpectedReply:
    item: QueuedRequest
    reply: Reply | None = None


class OrderedReplies:
    """Holds each reply until all earlier requests have theirs. A cancelled request holds up no other."""

    def __init__(self) -> None:
        self._expected: deque[_ExpectedReply] = deque()
        self._by_item: dict[QueuedRequest, _ExpectedReply] = {}

    def expect(self, item: QueuedRequest) -> None:
        """Keep the order of a request: that of its arrival."""
        expected = _ExpectedReply(item)
        self._expected.append(expected)
        self._by_item[item] = expected

    def answer(self, replies: Iterable[tuple[QueuedRequest, Reply]]) -> None:
        """Send replies, each once all earlier requests have theirs."""
        for item, reply in replies:
            expected = self._by_item.get(item)  # gone if the request was abandoned while it ran
            if expected is not None:
                expected.reply = reply
        while self._expected and ((first := self._expected[0]).reply is not None or first.item.is_cancelled):
            self._expected.popleft()
            del self._by_item[first.item]
            if first.reply is not None:
                first.item.answer(first.reply)
