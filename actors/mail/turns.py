"""Turns: `preserve_ordering` for decoupled models, whose requests have any number of responses each.

All responses of a request are sent before the first one of a later request. Early responses are held, since blocking
the model could deadlock it: one thread may answer all its requests. Owned by the model; a cancelled caller leaves the
order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from protocol.errors import Unavailable
from protocol.messages import InferenceResponse

# How much one request may hold before it fails.
MAX_HELD_BYTES = 64 << 20


@dataclass(eq=False, slots=True)
class Turn:
    """One request's position in the order, from when it joins. Its caller waits for it, forwards what was held and then
    what comes, and leaves the order however the request ends."""

    order: TurnOrder
    held: list[InferenceResponse] = field(default_factory=list)
    _held_bytes: int = 0
    _began: trio.Event = field(default_factory=trio.Event)

    @property
    def has_begun(self) -> bool:
        return self._began.is_set()

    def begin(self) -> None:
        self._began.set()

    def join(self) -> None:
        """Take the last position."""
        self.order.admit(self)

    def pass_by(self) -> None:
        """The request has ended: if it has no position in the order, it need not wait for one."""
        if self not in self.order:
            self.begin()

    def leave(self) -> None:
        """The request has ended, or its caller has gone."""
        self.order.leave(self)

    async def wait(self) -> None:
        """Returns when all earlier requests have left. Nothing is held from then on."""
        await self._began.wait()

    def hold(self, response: InferenceResponse) -> None:
        """Keep a response for later.

        Raises:
            Unavailable: too much is held already.
        """
        self._held_bytes += sum(tensor.byte_size for tensor in response.outputs)
        if self._held_bytes > MAX_HELD_BYTES:
            raise Unavailable(
                f"model '{response.model_name}' preserves the order of requests, and the responses that wait for an "
                f"earlier request's end have more than {MAX_HELD_BYTES} bytes"
            )
        self.held.append(response)


class TurnOrder:
    """The turns of one model version, in the order in which they joined: the first one has begun."""

    def __init__(self) -> None:
        self._turns: dict[Turn, None] = {}

    def join(self) -> Turn:
        turn = Turn(self)
        self.admit(turn)
        return turn

    def admit(self, turn: Turn) -> None:
        self._turns[turn] = None
        if len(self._turns) == 1:
            turn.begin()

    def __contains__(self, turn: Turn) -> bool:
        return turn in self._turns

    def leave(self, turn: Turn) -> None:
        """Leaving from the middle lets no other begin; leaving without having joined changes nothing."""
        self._turns.pop(turn, None)
        for first in self._turns:
            first.begin()
            return
