"""Ensemble limits: what the requests of one ensemble share, which is slots for requests in flight per step, and the
byte budget.

Flow: ensemble request → [ensemble limits] → ensemble request. Waits are bounded and cancellable; a cancelled one leaves
nothing behind.
"""

from __future__ import annotations

import math

import trio

from actors.ensemble.budget import ByteBudget, Pass, PassKind, PassOwner
from actors.ensemble.graph import Node
from protocol.errors import Unavailable
from repository.ensemble_parameters import max_inflight_bytes
from repository.model_config import ModelConfig

# As long as Triton waits for a place in flight.
MAX_WAIT_SECONDS = 300.0
# Iterations of one stream that run at a time: they may form batches, and a stream faster than its reader waits.
MAX_ITERATIONS = 64


class EnsembleLimits:
    """`max_inflight_requests` of each step and `max_inflight_bytes` of all."""

    def __init__(self, config: ModelConfig) -> None:
        assert config.ensemble_scheduling is not None
        self.max_requests = config.ensemble_scheduling.max_inflight_requests
        self._slots: dict[int, trio.Semaphore] = {}  # of a step when it runs first: there may be thousands of steps
        self._budget = ByteBudget(max_inflight_bytes(config) or math.inf, self._wake)
        self._waiting: dict[Pass, trio.Event] = {}
        self._requests = PassOwner(PassKind())
        self._streams: dict[int, PassKind] = {}

    @property
    def waiting_requests(self) -> int:
        """Requests that have not begun."""
        return self._budget.waiting_requests

    @property
    def held_bytes(self) -> int:
        """What is held or expected to be held, at present."""
        return self._budget.used

    def stream_owner(self, depth: int) -> PassOwner:
        """The owner of the iterations of one stream, which have this depth."""
        return PassOwner(self._streams.setdefault(depth, PassKind(is_stream=True)), MAX_ITERATIONS)

    async def begin_request(self, *, starts_with: int) -> Pass:
        """Wait until a request may begin; it must be ended by `leave`. Sizes are in bytes.

        Raises:
            Unavailable: it has waited too long.
        """
        return await self.begin(self._requests, starts_with=starts_with)

    async def begin(self, owner: PassOwner, *, starts_with: int) -> Pass:
        """As `begin_request`, for an iteration of a stream; that waits as long as the iterations before it need, and so
        also for a slow client."""
        asked = self._budget.ask(owner, starts_with=starts_with)
        if asked.has_begun:
            return asked
        may_begin = self._waiting[asked] = trio.Event()
        try:
            with trio.move_on_after(math.inf if owner.kind.is_stream else MAX_WAIT_SECONDS):
                await may_begin.wait()
                return asked
        except BaseException:
            self.leave(asked)
            raise
        finally:
            del self._waiting[asked]
        self.leave(asked)
        raise Unavailable(
            f"waited {MAX_WAIT_SECONDS:g} s for room among the intermediate tensors "
            f"(max_inflight_bytes is {self._budget.limit}, {self._budget.used} are taken)"
        )

    def hold(self, holder: Pass, held_bytes: int) -> None:
        self._budget.hold(holder, held_bytes)

    def leave(self, left: Pass) -> None:
        self._budget.leave(left)

    async def take_slot(self, node: Node) -> None:
        """Wait until the step may have one more request in flight; `give_slot` ends that.

        Raises:
            Unavailable: it has waited too long.
        """
        if node.step is None or not self.max_requests:
            return
        slots = self._slots.get(node.step.index)
        if slots is None:
            slots = self._slots[node.step.index] = trio.Semaphore(self.max_requests)
        try:
            slots.acquire_nowait()  # unlike acquire it is no checkpoint
        except trio.WouldBlock:
            with trio.move_on_after(MAX_WAIT_SECONDS):
                await slots.acquire()
                return
            raise Unavailable(
                f"waited {MAX_WAIT_SECONDS:g} s for one of the {self.max_requests} requests that may be in flight "
                f"(max_inflight_requests) for {node.step.label}"
            ) from None

    def give_slot(self, node: Node) -> None:
        if node.step is not None and self.max_requests:
            self._slots[node.step.index].release()

    def _wake(self, begun: Pass) -> None:
        waiting = self._waiting.get(begun)
        if waiting is not None:
            waiting.set()
