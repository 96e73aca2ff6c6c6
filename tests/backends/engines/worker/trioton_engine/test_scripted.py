"""The scripted engine itself: what other tests count on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.engines.worker.trioton_engine.engine import Adapter, EngineModel, Event, Generation, Refused, Sampling
from backends.engines.worker.trioton_engine.scripted import ScriptedEngine


@pytest.fixture
def wake() -> Iterator[int]:
    """A descriptor that is never readable."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


def engine(directory: str = "", **options: Any) -> ScriptedEngine:
    made = ScriptedEngine()
    made.load(EngineModel("m", directory, options))
    return made


def generation(sequence: int, *tokens: int, max_tokens: int = 100, adapter: str = "", **sampling: Any) -> Generation:
    return Generation(sequence, tokens, Sampling(max_tokens=max_tokens, **sampling), adapter)


def generated(made: ScriptedEngine, wake: int, sequence: int = 1) -> tuple[list[int], Event]:
    tokens: list[int] = []
    while True:
        for event in made.step(wake):
            if event.sequence == sequence:
                tokens += event.token_ids
                if event.finish:
                    return tokens, event


@pytest.mark.parametrize(
    ("rule", "sampling", "tokens", "finish"),
    [
        ("echo", {}, [5, 6, 7, 0], "stop"),
        ("echo", {"max_tokens": 2}, [5, 6], "length"),
        ("echo", {"stop_token_ids": [6]}, [5, 6], "stop"),
        ("echo", {"ignore_eos": True, "max_tokens": 5}, [5, 6, 7, 5, 6], "length"),
        ("repeat", {"max_tokens": 5}, [5, 6, 7, 5, 6], "length"),
        ("repeat", {"stop_token_ids": [6], "min_tokens": 2}, [5, 6, 7, 5, 6], "stop"),
    ],
)
def test_rules(wake: int, rule: str, sampling: dict[str, Any], tokens: list[int], finish: str) -> None:
    made = engine(rule=rule)
    made.submit(generation(1, 5, 6, 7, **sampling))
    found, last = generated(made, wake)
    assert found == tokens
    assert last.finish == finish
    assert last.stop_token == (tokens[-1] if finish == "stop" else None)
    assert made.stats().running == 0
    assert made.stats().cache_usage == 0


def test_a_script(wake: int, tmp_path: Path) -> None:
    script = [{"prompt": [1], "tokens": [7, 8]}, {"tokens": [9], "finish": "length"}]
    (tmp_path / "script.json").write_text(json.dumps(script))
    made = engine(str(tmp_path), rule="script")
    made.submit(generation(1, 1))
    assert generated(made, wake)[0] == [7, 8, 0]
    made.submit(generation(2, 2))
    found, last = generated(made, wake, 2)
    assert (found, last.finish) == ([9], "length")


def test_generations_wait_for_places_and_for_room(wake: int) -> None:
    made = engine(rule="repeat", max_num_seqs=2, cache_blocks=3)
    for sequence in (1, 2, 3):
        made.submit(generation(sequence, *range(20, 36)))
    made.step(wake)
    stats = made.stats()
    assert (stats.running, stats.waiting) == (1, 2), "each takes two of three blocks"
    made.abort(1)
    made.abort(3)
    assert {(each.sequence, each.finish) for each in made.step(wake)} == {(1, "abort"), (3, "abort"), (2, "")}
    with pytest.raises(Refused, match="does not fit into a cache of 3 blocks"):
        made.submit(generation(4, *range(100)))


def test_prefixes_are_found(wake: int) -> None:
    made = engine()
    for sequence, expected in ((1, 0), (2, 32)):
        made.submit(generation(sequence, *range(20, 60)))
        [event] = made.step(wake)
        assert event.cached_tokens == expected
        made.abort(sequence)
        made.step(wake)
    assert made.stats().prefix_hits == 32


def test_adapters(wake: int) -> None:
    with pytest.raises(Refused, match="no adapters"):
        engine().add_adapter(Adapter("a", "x"))
    made = engine(adapters="true")
    with pytest.raises(Refused, match="there is no adapter 'a'"):
        made.submit(generation(1, 5, adapter="a"))
    made.add_adapter(Adapter("a", "x"))
    made.submit(generation(1, 5, 6, adapter="a"))
    assert generated(made, wake)[0] == [6, 5, 0]
    made.remove_adapter("a")
    assert made.adapters() == ()


@pytest.mark.parametrize(
    ("options", "text"), [({"rule": "x"}, "must be echo, repeat or script"), ({"foo": 1}, "'foo'")]
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        engine(**options)


def test_adapters_by_their_files(wake: int, tmp_path: Path) -> None:
    made = engine(adapters="true")
    (tmp_path / "adapter.json").write_text('{"rotate": 1, "once": true}')
    made.add_adapter(Adapter("a", str(tmp_path)))
    made.submit(generation(1, 5, 6, 7, adapter="a"))
    assert generated(made, wake)[0] == [6, 7, 5, 0]
    with pytest.raises(FileExistsError):
        made.add_adapter(Adapter("b", str(tmp_path)))
    (tmp_path / "adapter.json").write_text('{"error": "no room"}')
    with pytest.raises(Refused, match="no room"):
        made.add_adapter(Adapter("b", str(tmp_path)))
    assert [each.name for each in made.adapters()] == ["a"]
