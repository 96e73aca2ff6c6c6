"""Which generations OpenVINO GenAI's engine begins, with pipelines that compute nothing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from backends.engines.worker.trioton_engine.engine import Adapter, Event, Generation, Sampling
from tests.backends.engines.models import needs_openvino_genai

pytestmark = [pytest.mark.slow, needs_openvino_genai]  # to import the library takes a second


class FakePipeline:
    """Its generations end when they are told to."""

    cache_usage = 0.0
    unscheduled = 0

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ending: set[int] = set()

    @property
    def is_idle(self) -> bool:
        return not self.begun

    def start(self, generation: Generation) -> None:
        self.begun.append(generation.sequence)

    def abort(self, sequence: int) -> None:
        self.ending.add(sequence)

    def step(self) -> list[Event]:
        ended = [each for each in self.begun if each in self.ending]
        self.begun = [each for each in self.begun if each not in self.ending]
        return [Event(each, [1], "length") for each in ended]


class Adapted:
    """An engine with a place for one adapter, of three."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # By its name: what is read and set here of the engine is its own, and of other types than it says.
        openvino_genai: Any = import_module("backends.engines.worker.trioton_engine.openvino_genai")

        self.now = 0.0
        monkeypatch.setattr(openvino_genai.time, "monotonic", lambda: self.now)
        self.patience = openvino_genai.PATIENCE_SECONDS
        self.engine = openvino_genai.OpenVinoGenAiEngine()
        self.engine._make = lambda adapter: FakePipeline()
        self.engine._pipelines[""] = FakePipeline()
        self.engine._adapters = {name: Adapter(name, "") for name in "abc"}
        self.engine._most_adapters = 1

    def submit(self, sequence: int, adapter: str = "") -> None:
        self.engine.submit(Generation(sequence, [1], Sampling(max_tokens=9), adapter))

    def end(self, sequence: int) -> None:
        self.engine.abort(sequence)
        assert [each.sequence for each in self.engine.step(0)] == [sequence]

    @property
    def running(self) -> set[int]:
        return set(self.engine._by_sequence)


@pytest.fixture
def adapted(monkeypatch: pytest.MonkeyPatch) -> Adapted:
    return Adapted(monkeypatch)


def test_an_adapter_that_is_loaded_goes_first_for_a_while(adapted: Adapted) -> None:
    adapted.submit(1, "a")
    adapted.submit(2, "b")
    adapted.submit(3, "a")
    adapted.submit(4)
    assert adapted.running == {1, 3, 4}
    adapted.end(1)
    assert adapted.running == {3, 4}, "its adapter is in use still"
    adapted.end(3)
    assert adapted.running == {2, 4}


def test_an_adapter_gets_its_place_however_busy_others_are(adapted: Adapted) -> None:
    adapted.submit(1, "a")
    adapted.submit(2, "b")
    for number in range(3, 20):  # before one ends, there is the next
        adapted.now += 0.3 * adapted.patience
        adapted.submit(number, "a")
        if 2 not in adapted.running and adapted.running:
            adapted.end(min(adapted.running))
    assert 2 in adapted.running
    assert adapted.running == {2}, "and the others wait for it in turn"
    adapted.submit(30)
    assert 30 in adapted.running, "without an adapter nobody waits"
    adapted.end(2)
    assert adapted.running >= {19, 30}, "those that have waited begin together"


def test_what_waits_for_a_place_can_be_ended(adapted: Adapted) -> None:
    adapted.submit(1, "a")
    adapted.submit(2, "b")
    adapted.end(2)
    adapted.end(1)
    assert adapted.running == set()
    assert not adapted.engine._pending
