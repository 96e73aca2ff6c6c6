"""Requests and streams of an edge process, as the core has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio

from protocol.core import RespondsAtOnce, Submitted
from protocol.edge_link.charges import LinkCharge
from protocol.edge_link.records import WINDOW_BYTES, WINDOW_RESPONSES
from protocol.edge_link.templates import Template
from protocol.errors import ServerError
from protocol.gen_ai import GenAiCall
from protocol.messages import InferenceResponse
from protocol.sync.wakeup import Wakeup


class LinkedRequest(msgspec.Struct, eq=False):
    """A request that is answered once. Implements `protocol.core.ReplyChannel`; `put` gets it with its reply."""

    number: int
    put: Callable[[LinkedRequest], None]
    reply: InferenceResponse | ServerError | None = None
    submitted: Submitted | None = None
    charge: LinkCharge | None = None  # where there is a quota

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        if self.reply is None:
            self.reply = value
            self.put(self)

    def end_charge(self) -> None:
        charge, self.charge = self.charge, None
        if charge is not None:
            charge.answered()

    def give_up(self) -> None:
        self.end_charge()
        submitted, self.submitted = self.submitted, None
        if submitted is not None:
            submitted.give_up()


class LinkedStream(RespondsAtOnce):
    """A request that is answered with any number of responses: the `Respond` that its model is given. A response goes
    while the edge has room for it; else the model waits. `put` takes one that can go now, and returns its
    size; one for which that is negative is to be given to `place`, which waits.

    Attributes:
        template: that of the last response, of this `era` of templates.
    """

    def __init__(
        self,
        number: int,
        own_id: str,
        put: Callable[[LinkedStream, InferenceResponse], int],
        place: Callable[[LinkedStream, InferenceResponse], Awaitable[None]],
    ) -> None:
        self.number = number
        self.own_id = own_id
        self.charge: LinkCharge | None = None  # where there is a quota
        self.call: GenAiCall | None = None  # where it is observed
        self.has_answered = False
        self.template: Template | None = None
        self.era = 0
        self.scope = trio.CancelScope()
        self._put = put
        self._place = place
        self._responses_left = WINDOW_RESPONSES
        self._bytes_left = WINDOW_BYTES
        self._credited = Wakeup()

    def respond_at_once(self, response: InferenceResponse) -> bool:
        if self._responses_left <= 0 or self._bytes_left <= 0:
            return False
        size = self._put(self, response)
        if size < 0:
            return False
        self._responses_left -= 1
        self._bytes_left -= size
        return True

    async def __call__(self, response: InferenceResponse) -> None:
        while self._responses_left <= 0 or self._bytes_left <= 0:
            await self._credited.wait()
        size = self._put(self, response)
        self._responses_left -= 1
        self._bytes_left -= response_size(response) if size < 0 else size
        if size < 0:
            await self._place(self, response)

    def credit(self, responses: int, size: int) -> None:
        """The edge has passed so much on."""
        self._responses_left += responses
        self._bytes_left += size
        self._credited.wake()


def response_size(response: InferenceResponse) -> int:
    """Of its tensors, in bytes."""
    return sum([output.byte_size for output in response.outputs])
