"""Conversations: the items that a request goes on from, which earlier responses have kept."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from protocol.http.exchange import HttpRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.responses.items import Item, items_of, listed
from protocol.http.openai.responses.requests import ResponseFields
from protocol.responses.store import KeptResponse


@dataclass(frozen=True, slots=True)
class Conversation:
    """`known` of the items, the first, are those of earlier responses."""

    items: list[Item]
    known: int = 0

    def encode(self) -> bytes:
        """As they are kept, and listed. Those that were given are such as could be read."""
        return msgspec.json.encode([*self.items[: self.known], *listed(self.items[self.known :])])


def previous_response(request: HttpRequest, body: ResponseFields) -> KeptResponse | None:
    """Raises:
    FieldError: it is not kept, is another's, or has not ended.
    """
    previous = body.previous_response_id
    if previous is None:
        return None
    kept = request.services.responses.find(request.caller, previous)
    if kept is None:
        raise FieldError(
            f"Previous response with id '{previous:.256}' not found.",
            "previous_response_id",
            "previous_response_not_found",
        )
    if kept.is_running:
        raise FieldError(f"Previous response '{previous:.256}' has not ended.", "previous_response_id")
    return kept


def conversation_of(body: ResponseFields, previous: KeptResponse | None) -> Conversation:
    """Takes as long as there is to read.

    Raises:
        FieldError: there is no input.
    """
    given = items_of(body.input)
    if previous is None:
        return Conversation(given)
    known = [*msgspec.json.decode(previous.items), *msgspec.json.decode(previous.answer)["output"]]
    return Conversation([*known, *given], len(known))
