"""`preserve_ordering`: replies leave in the order in which the requests came, over all instances of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from actors.mail.messages import QueuedRequest
from actors.mail.reply_slot import Reply


@dataclass(eq=False, slots=True)
class _Place:
    item: QueuedRequest
    reply: Reply | None = None


class OrderedReplies:
    """Holds replies back until all earlier requests have theirs. An abandoned request holds nobody up."""

    def __init__(self) -> None:
        self._places: deque[_Place] = deque()
        self._by_item: dict[QueuedRequest, _Place] = {}

    def expect(self, item: QueuedRequest) -> None:
        """Keep a place for a request, in order of arrival."""
        place = _Place(item)
        self._places.append(place)
        self._by_item[item] = place

    def answer(self, replies: Iterable[tuple[QueuedRequest, Reply]]) -> None:
        """Note replies and send all that no earlier request holds back."""
        for item, reply in replies:
            place = self._by_item.get(item)  # gone if the request was abandoned while it ran
            if place is not None:
                place.reply = reply
        while self._places and ((first := self._places[0]).reply is not None or first.item.is_cancelled):
            self._places.popleft()
            del self._by_item[first.item]
            if first.reply is not None:
                first.item.answer(first.reply)
