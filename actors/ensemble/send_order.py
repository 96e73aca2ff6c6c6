"""The order in which the responses of a decoupled ensemble are sent: that of the step responses that began their
iterations.

Iterations run concurrently and end in any order. Each has a `SendOrder`: before it sends, it waits until all that came
before it, in its own stream and in those around it, have sent what they had to send. Tasks of the request's nursery
wait on it; cancelled, they leave no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio


@dataclass(eq=False, slots=True)
class SendOrder:
    """One iteration's position: `before` is that of the iteration before it in its stream, `around` that of the
    iteration that its stream belongs to."""

    before: SendOrder | None = None
    around: SendOrder | None = None
    _done: trio.Event = field(default_factory=trio.Event)

    def done(self) -> None:
        """Nothing more comes of this iteration, nor of those inside it."""
        self._done.set()

    async def wait_turn(self) -> None:
        """Wait until it is this iteration's turn."""
        order: SendOrder | None = self
        while order is not None:
            await order._all_before()
            order = order.around

    async def finished(self) -> None:
        """Wait until this iteration and all before it in its stream are done."""
        await self._all_before()
        await self._done.wait()

    async def _all_before(self) -> None:
        while self.before is not None:
            before = self.before
            await before._done.wait()
            self.before = before.before  # so that a long stream does not keep them all
