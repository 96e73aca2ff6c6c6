"""Policy of when a process looks for garbage among all of its objects, not only the newest.

Such a collection holds the loop for as long as there are many objects: 20,000 open streams have 800,000 and more, which
take a second, and none of them is garbage. So how long it would take is estimated, and one that is not short is left
until the process has grown by more than its clients explain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# A collection that takes no longer holds nobody up.
SHORT_SECONDS = 0.005
# At first; then what the last one took.
_BLOCK_SECONDS = 0.5e-6
# Fewer say little about what each takes.
_TELLING_BLOCKS = 50_000

# After so many objects more all that has outlived a collection is looked at, if there is time. As long as that finds
# next to nothing it is done less and less often.
_LEAST_BETWEEN, _MOST_BETWEEN = 600_000, 9_600_000
_NEXT_TO_NOTHING = 0.01
_BLOCKS_OF_OBJECT = 2
# And when the process has grown by so much since: few cycles may hold large tensors.
GROWTH_BYTES = 64 << 20
# A long one that frees less than this part of the growth has been for nothing; the next waits for twice as much.
_WORTH_IT = 8
_MOST_GROWTH_BYTES = 1 << 30
# After so many times as many, or as much, it is done whether there is time or not.
_PATIENCE = 4

# What a connection or a request may have, with all that the server keeps for it; a stream has a third. The bytes of
# requests are there once more, at most, as their tensors or their answers.
CLIENT_BLOCKS = 500
CLIENT_BYTES = 64 << 10
_TIMES_HELD = 2


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses: how many more `objects` have come than gone so far (`NewObjects.count`), its `resident`
    bytes, and the `blocks` of memory that hold Python's objects now (`sys.getallocatedblocks`)."""

    objects: int
    resident: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Held:
    """What the server holds for its clients: a `count` of their connections and requests, and the `size` of these in
    bytes."""

    count: int = 0
    size: int = 0


class OldGarbage:
    """Says when a collection of all objects is due. It is made when `collect_less` has frozen what the process has
    then, its `usage`; collections do not look at that."""

    def __init__(self, usage: Usage) -> None:
        self._last = usage
        self._frozen_blocks = usage.blocks
        self._block_seconds = _BLOCK_SECONDS
        self._between = _LEAST_BETWEEN
        self._growth = GROWTH_BYTES
        self._explained = 0  # bytes, at most since the last

    def seconds(self, usage: Usage) -> float:
        """How long a collection would take, about."""
        return max(0, usage.blocks - self._frozen_blocks) * self._block_seconds

    def is_short(self, usage: Usage) -> bool:
        return self.seconds(usage) <= SHORT_SECONDS

    def is_due(self, usage: Usage, held: Callable[[], Held], *, is_idle: bool) -> bool:
        """Whether to collect now that the process has this `usage`. `held` is called only where its answer matters,
        since counting what clients hold takes time."""
        patience = 1 if is_idle else _PATIENCE
        grown = usage.resident - self._last.resident
        if self.is_short(usage):
            more = usage.objects - self._last.objects
            return more >= self._between * patience or grown >= GROWTH_BYTES * patience
        blocks = usage.blocks - self._last.blocks
        most_blocks, most_grown = self._between * _BLOCKS_OF_OBJECT * patience, self._growth * patience
        if blocks < most_blocks and grown < most_grown:
            return False
        clients = held()
        explained = clients.count * CLIENT_BYTES + clients.size * _TIMES_HELD
        # Of clients that have gone since, the process keeps pages that have other things in them, too.
        self._explained = max(self._explained, explained)
        return blocks - clients.count * CLIENT_BLOCKS >= most_blocks or grown - self._explained >= most_grown

    def note(self, before: Usage, after: Usage, found: int, seconds: float) -> None:
        """Learn from a collection that took so many seconds and found so many objects, from what the process had before
        it and after it."""
        is_clean = found <= (before.objects - self._last.objects) * _NEXT_TO_NOTHING
        self._between = min(2 * self._between, _MOST_BETWEEN) if is_clean else _LEAST_BETWEEN
        freed, grown = before.resident - after.resident, before.resident - self._last.resident
        is_for_nothing = not self.is_short(before) and is_clean and freed * _WORTH_IT < grown
        self._growth = min(2 * self._growth, _MOST_GROWTH_BYTES) if is_for_nothing else GROWTH_BYTES
        seen = before.blocks - self._frozen_blocks
        if seen >= _TELLING_BLOCKS:
            self._block_seconds = seconds / seen
        self._explained = 0
        self._last = Usage(before.objects, after.resident, after.blocks)
