"""Live requests and a job on one model of the ordinary core, in virtual time: what they took, and how far it got."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.jobs.background import BackgroundRequests
from actors.mail.reply_slot import ReplySlot
from backends.interface import BatchResult
from backends.registry import BackendRegistry
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse
from tests.actors.core.test_server_core import add_model
from tests.actors.fakes import FakeBackend, fake_backend, request

CONFIG = """
name: "m" backend: "fake" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { }
instance_group [ { count: %d kind: KIND_CPU } ]
"""
# Rows of the job that wait at any time: as the runner of jobs has them.
HELD = 16

Seconds = Callable[[int], float]
"""What a model takes for a batch of so many rows."""


class TimedBackend(FakeBackend):
    """Takes what its class says for a number of rows."""

    seconds_of: Seconds

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        self.seconds = type(self).seconds_of(len(requests))
        return await super().execute(requests)


@dataclass
class Result:
    """`times` are what live requests took that were answered in the time that counts; `rows` of the job were answered
    in it."""

    times: list[float] = field(default_factory=list)
    rows: int = 0
    failed: int = 0
    given_up: int = 0

    @property
    def p99(self) -> float:
        return sorted(self.times)[math.ceil(0.99 * len(self.times)) - 1]


@dataclass
class Simulation:
    """`clients` ask one request after the other, until `asks_until`; or requests come at random, `rate` a second. What
    happens after `count_from` counts. Rows are given up that have not been answered after `gives_up_after`."""

    seconds_of: Seconds
    clients: int = 0
    rate: float = 0.0
    duration: float = 20.0
    count_from: float = 2.0
    has_job: bool = True
    instances: int = 1
    asks_until: float = math.inf
    gives_up_after: float = math.inf
    seed: int = 1
    events: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Have it called then."""
        self.events.append((seconds, call))

    async def run(self, folder: Path) -> Result:
        self.result = Result()
        add_model(folder, "m", config=CONFIG % self.instances)
        backend = type("Timed", (TimedBackend, fake_backend()), {"seconds_of": staticmethod(self.seconds_of)})
        settings = CoreSettings((folder,), control_mode=ControlMode.EXPLICIT, load_models=("m",))
        self.core = ServerCore(settings, BackendRegistry({"fake": backend}))
        self.background = BackgroundRequests(self.core, CallbackFailures())
        self.random = random.Random(self.seed)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.core.run)
            await nursery.start(self.background.run)
            self.began = trio.current_time()
            for number in range(self.clients):
                nursery.start_soon(self._ask_on, number)
            for seconds, call in self.events:
                nursery.start_soon(self._call_later, seconds, call)
            if self.rate:
                nursery.start_soon(self._arrive, nursery)
            if self.has_job:
                for _ in range(HELD):
                    nursery.start_soon(self._row_after_row)
            await trio.sleep(self.duration)
            nursery.cancel_scope.cancel()
        return self.result

    def counts(self) -> bool:
        return trio.current_time() - self.began >= self.count_from

    async def _live(self) -> None:
        began = trio.current_time()
        slot = ReplySlot()
        submission = self.core.submit(request(id="live"), slot, later=True)
        self.core.flush()
        reply = await slot.receive()
        submission.end()
        assert isinstance(reply, InferenceResponse)
        if self.counts():
            self.result.times.append(trio.current_time() - began)

    async def _ask_on(self, number: int) -> None:
        await trio.sleep(0.0001 * number)
        while trio.current_time() - self.began < self.asks_until:
            await self._live()
            await trio.sleep(0.0002 * self.random.random())

    async def _arrive(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(self.random.expovariate(self.rate))
            nursery.start_soon(self._live)

    async def _row_after_row(self) -> None:
        while True:
            with trio.move_on_after(self.gives_up_after) as scope:
                try:
                    await self.background.infer(request(id="job"))
                except ServerError:
                    self.result.failed += 1
                    await trio.sleep(0.1)
                else:
                    self.result.rows += self.counts()
            self.result.given_up += scope.cancelled_caught

    async def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        await trio.sleep(seconds)
        call()
