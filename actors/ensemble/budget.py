"""Byte budget policy of an ensemble (`max_inflight_bytes`): which requests and iterations may begin, which must wait.

A plain synchronous policy that imports no Trio; the ensemble consults it.

A *pass* is one run through (a part of) the graph: a request, or one iteration that a decoupled step's response begins.
It belongs to an *owner*: all requests of the ensemble to one, the iterations of one response stream to another.

Rules:

1. A pass counts with what it holds, or with what it is expected to come to hold, whichever is more. It is expected to
   hold as much as passes of its kind have held of late (the largest, forgotten slowly), at least what it starts with.
2. A pass may begin while the sum stays within the limit. What has begun is never held up, so the limit may be passed by
   what cannot be foreseen.
3. A pass that would be the only one of its owner may always begin. So a stream to which others leave no room still
   moves, one response at a time; and as every pass that has begun can end, no two wait for each other.
4. An owner has at most so many passes at a time as it says.
5. Those that wait begin in the order in which they asked, streams before requests: a stream has begun already, and only
   its end sets free what its request holds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class PassKind:
    """Passes that resemble each other. `expected` is in bytes."""

    is_stream: bool = False
    expected: int = 0

    def learn(self, peak: int) -> None:
        self.expected = max(peak, self.expected * 9 // 10)


@dataclass(eq=False, slots=True)
class PassOwner:
    """The owner of passes, and how many of them it has at present."""

    kind: PassKind
    most: float = math.inf
    count: int = 0


@dataclass(eq=False, slots=True)
class Pass:
    """One pass, waiting or begun. `held` and `peak` are in bytes."""

    owner: PassOwner
    expected: int
    has_begun: bool = False
    held: int = 0
    peak: int = 0

    @property
    def counted(self) -> int:
        return max(self.held, self.expected)


@dataclass(eq=False, slots=True)
class ByteBudget:
    """`limit` is in bytes, infinite for none. `wake` is called with each pass that may begin after it had to wait."""

    limit: float
    wake: Callable[[Pass], None]
    used: int = 0
    _streams: list[Pass] = field(default_factory=list)
    _requests: deque[Pass] = field(default_factory=deque)

    @property
    def waiting_requests(self) -> int:
        return len(self._requests)

    def ask(self, owner: PassOwner, *, starts_with: int) -> Pass:
        """Add a pass. It has begun, or waits until `wake`."""
        asked = Pass(owner, max(starts_with, owner.kind.expected))
        if owner.kind.is_stream:  # streams are of different owners: one need not wait for another
            if self._may_begin(asked):
                self._begin(asked)
            else:
                self._streams.append(asked)
        elif not self._requests and self._may_begin(asked):
            self._begin(asked)
        else:
            self._requests.append(asked)
        return asked

    def hold(self, holder: Pass, held: int) -> None:
        """Set what a pass holds now."""
        if held == holder.held or not holder.has_begun:
            return
        before = holder.counted
        holder.held = held
        if held > holder.peak:
            holder.peak = held
        self.used += holder.counted - before
        self._begin_waiting()

    def leave(self, left: Pass) -> None:
        """A pass has ended, or gives up waiting. Idempotent."""
        if left.has_begun:
            left.has_begun = False
            left.owner.count -= 1
            left.owner.kind.learn(left.peak)
            self.used -= left.counted
        elif left in self._streams:
            self._streams.remove(left)
        elif left in self._requests:
            self._requests.remove(left)
        self._begin_waiting()

    def _may_begin(self, asked: Pass) -> bool:
        owner = asked.owner
        return not owner.count or (owner.count < owner.most and self.used + asked.expected <= self.limit)

    def _begin(self, asked: Pass) -> None:
        asked.has_begun = True
        asked.owner.count += 1
        self.used += asked.counted

    def _begin_waiting(self) -> None:
        if self._streams:
            for asked in list(self._streams):
                if self._may_begin(asked):
                    self._streams.remove(asked)
                    self._begin(asked)
                    self.wake(asked)
        while self._requests and self._may_begin(self._requests[0]):
            asked = self._requests.popleft()
            self._begin(asked)
            self.wake(asked)
