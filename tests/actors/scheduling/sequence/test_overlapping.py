"""Sequences on an instance that takes a batch while it runs others, with batches that end when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.model import Model
from actors.scheduling.sequence.strategy import DirectStrategy
from backends.interface import STARTED, BatchResult, BatchTiming, InstanceDied, InstanceSpec, Responder, Started
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import ModelConfig, ModelTransactionPolicy, StrategyOldest
from tests.actors.fakes import TIMING, FakeBackend, spec, tensor
from tests.actors.scheduling.sequence.sequences import END, START, config

OLDEST = StrategyOldest(max_candidate_sequences=2)
DIED = InstanceDied("the worker has died")


class Overlapping(FakeBackend):
    """Keeps each batch until `end` names it by one of its requests."""

    can_overlap = True
    can_be_decoupled = True
    how: str

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self.running: dict[str, Callable[[], None]] = {}
        self.cancelled: list[str] = []

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started | None:
        if self.how == "awaited":
            return None
        assert free is not None
        self._note(requests, lambda: done(DIED if self.died.is_set() else BatchResult(answers(requests), TIMING)))
        free()
        return STARTED

    async def execute_overlapping(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> BatchResult:
        await self._ended(requests, free)
        return BatchResult(answers(requests), TIMING)

    async def execute_decoupled_overlapping(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], free: Callable[[], None]
    ) -> BatchTiming:
        await self._ended(requests, free)
        for answer, responder in zip(answers(requests), responders, strict=True):
            await responder.send(answer)
        return TIMING

    async def _ended(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> None:
        ended = trio.Event()
        self._note(requests, ended.set)
        free()
        await ended.wait()
        if self.died.is_set():
            raise DIED

    def _note(self, requests: Sequence[InferenceRequest], end: Callable[[], None]) -> None:
        self.batches.append([request.id for request in requests])
        self.running[" ".join(request.id for request in requests if request.id)] = end

    def end(self, *batches: str) -> None:
        for ids in batches:
            self.running.pop(ids)()

    def cancel(self, request: InferenceRequest) -> None:
        self.cancelled.append(request.id)


def answers(requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
    return [InferenceResponse("m", 1, [], request.id) for request in requests]


@dataclass
class Served:
    """A model of one instance, and what its callers got."""

    nursery: trio.Nursery
    of: ModelConfig
    how: str
    answered: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kind: type[Overlapping] = type(
            "TestOverlapping", (Overlapping,), {"how": self.how, "made": [], "batches": []}
        )
        if self.how == "decoupled":
            self.of = replace(self.of, model_transaction_policy=ModelTransactionPolicy(decoupled=True))
        self.model = Model(self.of, 1, self.kind, [spec(self.of)], restart_wait=60.0)

    @property
    def instance(self) -> Overlapping:
        found = self.kind.made[-1]
        assert isinstance(found, Overlapping)
        return found

    @property
    def running(self) -> list[str]:
        return list(self.instance.running)

    async def ask(self, id: str, sequence: int, *, start: bool = False, end: bool = False) -> trio.CancelScope:
        """A step of a sequence, whose caller waits in the background."""
        asked = InferenceRequest("m", [tensor()], id=id, sequence_id=sequence, sequence_start=start, sequence_end=end)
        waiting = trio.CancelScope()

        async def respond(response: InferenceResponse) -> None:
            self.answered.append(response.id)

        async def wait() -> None:
            with waiting:
                try:
                    await self.model.infer_stream(asked, respond)
                except ServerError as error:
                    self.errors[id] = error.message

        self.nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        return waiting

    async def end(self, *batches: str) -> None:
        self.instance.end(*batches)
        await wait_all_tasks_blocked()


@pytest.fixture(params=["begun", "awaited", "decoupled"])
def how(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


async def serve(nursery: trio.Nursery, of: ModelConfig, how: str) -> Served:
    served = Served(nursery, of, how)
    await nursery.start(served.model.run)
    return served


@pytest.mark.parametrize("oldest", [None, OLDEST], ids=["direct", "oldest"])
async def test_steps_of_different_sequences_run_at_once(
    nursery: trio.Nursery, how: str, oldest: StrategyOldest | None
) -> None:
    served = await serve(nursery, config(max_batch_size=2, oldest=oldest), how)
    await served.ask("a", 1, start=START)
    await served.ask("b", 2, start=START)
    await served.ask("a2", 1, end=END)
    assert served.running == ["a", "b"]
    await served.end("b")
    await served.ask("b2", 2)
    assert served.running == ["a", "b2"]
    await served.end("a")
    assert served.running == ["b2", "a2"]
    await served.end("a2", "b2")
    assert sorted(served.answered) == ["a", "a2", "b", "b2"]
    row = [""] if oldest is None else []
    assert served.instance.batches == [["a"], [*row, "b"], [*row, "b2"], ["a2"]]
    assert served.model.instance_count == 1
    assert not served.errors


async def test_a_caller_that_goes_leaves_the_others_of_its_instance_alone(nursery: trio.Nursery, how: str) -> None:
    """Whoever gets its slot waits for what the model still does there."""
    served = await serve(nursery, config(max_batch_size=2), how)
    gone = await served.ask("gone", 1, start=START)
    await served.ask("rest", 1)
    await served.ask("b", 2, start=START)
    gone.cancel()
    await wait_all_tasks_blocked()
    assert served.errors == {"rest": "an earlier request of the sequence was cancelled"}
    assert served.instance.cancelled[0] == "gone"
    assert set(served.instance.cancelled) <= {"gone", ""}
    await served.ask("next", 3, start=START)
    await served.end("b")
    await served.ask("b2", 2)
    assert served.running == ["gone", "b2"]
    await served.end("gone")
    assert served.running == ["b2", "next"]
    await served.end("b2", "next")
    assert {"b", "b2", "next"} <= set(served.answered)


async def test_a_death_ends_all_that_runs_and_what_waits_outside_goes_on(
    autojump_clock: MockClock, nursery: trio.Nursery, how: str
) -> None:
    """Nobody moves in where the first of several batches has ended by it."""
    served = await serve(nursery, config(max_batch_size=2), how)
    await served.ask("worked", 9, start=START, end=END)
    await served.end("worked")
    await served.ask("a", 1, start=START)
    await served.ask("a2", 1)
    await served.ask("b", 2, start=START)
    await served.ask("waits", 3, start=START)
    dead = served.instance
    dead.died.set()
    dead.end("b")  # the other is stopped
    await trio.sleep(30)
    assert served.instance is not dead
    over = "model instance 'm_0' has died, and with it the sequences that it had"
    assert served.errors == {"a": DIED.message, "b": DIED.message, "a2": over}
    assert served.running == ["waits"]
    await served.ask("anew", 1, start=START)
    await served.end("waits", "anew")
    assert {"waits", "anew"} <= set(served.answered)


async def test_a_request_of_rounds_that_waits_for_a_slot_survives_a_death(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    served = await serve(nursery, config(max_batch_size=2, iterative=True), "begun")
    await served.ask("worked", 0)
    await served.end("worked")
    for id in ("a", "b", "waits"):
        await served.ask(id, 0)
    assert served.running == ["a", "b"]
    dead = served.instance
    dead.died.set()
    dead.end("a", "b")
    await trio.sleep(30)
    assert served.errors == {"a": DIED.message, "b": DIED.message}
    await served.end("waits")
    assert "waits" in served.answered


async def test_after_a_defect_an_instance_ends_all_that_it_runs_first(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(nursery, config(max_batch_size=3), "begun")
    await served.ask("a", 1, start=START)
    await served.ask("b", 2, start=START)
    with monkeypatch.context() as patch:
        patch.setattr(DirectStrategy, "next_batch", lambda self, instance, now: 1 / 0)
        await served.ask("c", 3, start=START)
    assert set(served.errors) == {"a", "b", "c"}
    await served.ask("d", 4, start=START)
    for ended in ("b", "a"):
        assert "d" not in served.running
        await served.end(ended)
    await served.ask("e", 5, start=START)
    assert served.running == ["d", "e"]
    await served.end("d", "e")
    assert sorted(served.answered) == ["d", "e"]
