"""In which order the responses of a decoupled ensemble leave: that of the responses that began their iterations.

Iterations run beside each other and end in any order. Each has a turn; before it sends, it waits until all that came
before it, in its own stream and in those around it, has sent what it had to send.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio


@dataclass(eq=False, slots=True)
class Turn:
    """One iteration's. `before` is the turn of the iteration before it in its stream, `around` that of the iteration
    that its stream belongs to."""

    before: Turn | None = None
    around: Turn | None = None
    _done: trio.Event = field(default_factory=trio.Event)

    def done(self) -> None:
        """Nothing more comes of this iteration, nor of those inside it."""
        self._done.set()

    async def come(self) -> None:
        """Sleep until it is this iteration's turn."""
        turn: Turn | None = self
        while turn is not None:
            await turn._all_before()
            turn = turn.around

    async def finished(self) -> None:
        """Sleep until this iteration and all before it in its stream are done."""
        await self._all_before()
        await self._done.wait()

    async def _all_before(self) -> None:
        while self.before is not None:
            before = self.before
            await before._done.wait()
            self.before = before.before  # so that a long stream does not keep all its turns
