"""Structures that clients send to OpenVINO GenAI: what cannot be compiled, or not in time, is lost alone."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from backends.engines.worker.trioton_engine.engine import (
    EngineModel,
    Event,
    Generation,
    Refused,
    Sampling,
    Structure,
)
from protocol.errors import InvalidArgument
from tests.backends.engines.models import GREEDY, TINY, needs_openvino_genai, write_model
from tests.backends.engines.serving import kill_workers, serve
from tests.backends.python.processes import children, is_alive, until

pytestmark = [pytest.mark.slow, needs_openvino_genai]

EXACT: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "num_kv_blocks": 64, "INFERENCE_NUM_THREADS": 1}
PROMPT = GREEDY[0]["prompt"]
# Its automaton has some 10⁹ states.
ENDLESS = {"regex": ".*a.{30}"}
HEADED = Path(__file__).parents[3] / "backends" / "python" / "worker"


def processes_of_structures() -> list[int]:
    """The processes that compile, of all workers of this process."""
    found = []
    for worker in children():
        for path in Path(f"/proc/{worker}/task").glob("*/children"):
            found += [int(pid) for pid in path.read_text().split()]
    return found


async def test_one_that_takes_too_long_is_refused_and_holds_nobody(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT, structure_seconds=1)) as served:
        beside: list[str] = []

        async def go_on() -> None:
            while not refused:
                beside.append(await served.text(PROMPT, temperature=0, max_tokens=32))

        refused = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            with pytest.raises(InvalidArgument) as caught:
                await served.text(PROMPT, structured_outputs=ENDLESS)
            refused = caught.value.message
        assert "structured_outputs.regex: it takes more than 1 s to compile" in refused
        assert set(beside) == {GREEDY[0]["text"]}
        assert len(beside) > 1, "others went on meanwhile"
        text = await served.text(PROMPT, structured_outputs={"regex": "[ab]{3}"})
        assert len(text) == 3
        assert set(text) <= set("ab")
        await served.wait_free()


async def test_a_client_that_leaves_while_it_is_judged(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT, structure_seconds=2)) as served:
        async with trio.open_nursery() as nursery:
            for structure in (ENDLESS, {"regex": ".*b.{30}"}):
                nursery.start_soon(partial(served.text, PROMPT, structured_outputs=structure))
            await served.wait_waiting(2)
            nursery.cancel_scope.cancel()
        await served.wait_free()
        assert await served.text(PROMPT, structured_outputs={"choice": ["yes"]}) == "yes"


async def test_a_process_of_structures_that_dies_costs_one_request(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT, structure_seconds=60)) as served:
        assert await served.text(PROMPT, structured_outputs={"choice": ["yes"]}) == "yes"
        [pid] = processes_of_structures()
        errors: list[str] = []

        async def ask() -> None:
            with pytest.raises(InvalidArgument) as caught:
                await served.text(PROMPT, structured_outputs=ENDLESS)
            errors.append(caught.value.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await served.wait_waiting(1)
            os.kill(pid, signal.SIGKILL)
        assert "structured_outputs.regex: compiling it takes too much memory" in errors[0]
        assert await served.text(PROMPT, structured_outputs={"choice": ["no"]}) == "no"


async def test_it_ends_with_its_worker(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT)) as served:
        assert await served.text(PROMPT, structured_outputs={"choice": ["yes"]}) == "yes"
        [pid] = processes_of_structures()
        kill_workers(children())
        await until(lambda: not is_alive(pid))
        await served.wait_ready()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """In this process, as its worker would have it."""
    monkeypatch.syspath_prepend(HEADED)
    from backends.engines.worker.trioton_engine.openvino_genai import OpenVinoGenAiEngine

    made = OpenVinoGenAiEngine()
    made.load(EngineModel("m", str(TINY), EXACT))
    yield made
    made.close()


def run(engine: Any, *asked: Generation) -> dict[int, list[Event]]:
    """The events of each, to the end of all."""
    found: dict[int, list[Event]] = {each.sequence: [] for each in asked}
    read, write = os.pipe()
    for each in asked:
        engine.submit(each)
    while not all(events and events[-1].finish for events in found.values()):
        for event in engine.step(read):
            found[event.sequence].append(event)
    os.close(read)
    os.close(write)
    return found


def generation(number: int, structure: Structure | None = None, tokens: int = 32) -> Generation:
    return Generation(number, GREEDY[0]["prompt_token_ids"], Sampling(tokens, temperature=0.0, structure=structure))


def test_compiled_structures_do_not_fill_the_memory(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps them for good with its tokenizer, so that is exchanged when nothing runs."""
    from backends.engines.worker.trioton_engine import openvino_genai

    tokenizer = engine._tokenizer
    large = Structure("choice", json.dumps([f"{place:08}" for place in range(2000)]))
    run(engine, generation(1, large))
    assert engine._tokenizer is tokenizer
    monkeypatch.setattr(openvino_genai, "_MOST_KEPT", 1 << 16)
    found = run(engine, generation(2), generation(3))
    assert engine._tokenizer is not tokenizer
    for events in found.values():
        assert [token for event in events for token in event.token_ids] == GREEDY[0]["token_ids"]
    tokenizer = engine._tokenizer
    run(engine, generation(4))
    assert engine._tokenizer is tokenizer, "it is empty again"


def test_one_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HEADED)
    from backends.engines.worker.trioton_engine.structure_process import StructureProcess, TooCostly

    process = StructureProcess(str(TINY), 1 << 27)
    large = Structure("choice", json.dumps([f"{place:016}" for place in range(50_000)]))
    try:
        with pytest.raises(TooCostly, match=r"structured_outputs\.choice: compiling it takes too much memory"):
            process.compile(large, 60)
        assert process.compile(Structure("regex", "a+"), 60) >= 0
    finally:
        process.stop()


def test_what_is_known_and_what_is_too_long(engine: Any) -> None:
    judge = engine._judge
    good, bad = Structure("regex", "a+"), Structure("regex", "(a")
    for each in (good, bad):
        judge.ask(each)
    decided: dict[Structure, str] = {}
    while len(decided) < 2:
        select.select([judge.descriptor], [], [])
        decided.update((structure, verdict.error) for structure, verdict in judge.hear())
    assert not decided[good]
    assert "structured_outputs.regex: Regex parsing error" in decided[bad]
    assert judge.verdict(good) == ("", False)
    assert judge.verdict(bad).is_refused
    assert judge.verdict(Structure("grammar", "a+")) is None
    with pytest.raises(Refused, match="has 1048577 characters, at most 1048576"):
        judge.ask(Structure("regex", "a" * ((1 << 20) + 1)))
