"""Runs that end at any moment, on real files: each row is there once in the end, and in order.

A run that is cancelled leaves what a killed process leaves: nothing is written after that. What a process had written
since its last checkpoint may be there, or a part of it, so some of it is cut off or replaced.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.jobs.data.places import files_of
from protocol.errors import InvalidArgument
from protocol.http.codec.job_rows import RowDecoder
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.source import DataFormat
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from trioton.batch.attempts import Attempts
from trioton.batch.caution import MOST_CRASHES_ALONE
from trioton.batch.input import Input, Shard
from trioton.batch.places import OutputPlace, output_place
from trioton.batch.run import Run
from trioton.batch.state import Identity, State
from trioton.batch.window import Window
from trioton.in_process import Models

ROWS = 60
DECODER = RowDecoder(ModelInputs("m", [("X", "INT64", (-1, 1))], is_batched=True), -1, 1 << 20)
IDENTITY = Identity("", "", "jsonl", "m", -1, "1/1", None)


class DyingModels:
    """Doubles; refuses each row whose number ends in 7; after so many rows the run is cancelled."""

    def __init__(self, left: int, scope: trio.CancelScope) -> None:
        self._left = left
        self._scope = scope

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        value = int(request.inputs[0].as_numpy()[0, 0])
        for _ in range(value % 4):  # rows overtake each other
            await trio.lowlevel.checkpoint()
        self._left -= 1
        if self._left < 0:
            self._scope.cancel()
            await trio.sleep_forever()
        if value % 10 == 7:
            raise InvalidArgument("ends in 7")
        return InferenceResponse("m", 1, [Tensor.from_numpy("Y", np.array([[2 * value]]))])


async def run_once(folder: Path, place: OutputPlace, rows_before_death: int) -> State:
    """As `trioton batch` does it."""
    states = place.states({})
    state = states.read() or State(IDENTITY)
    if state.is_running:
        state = msgspec.structs.replace(state, caution=state.caution.after_crash(state.done))
    files = files_of(folder / "in.jsonl", DataFormat.JSON_LINES, {})
    rows = Input(files, DataFormat.JSON_LINES, DECODER, start=state.position, shard=Shard())
    with place.results(state, {}, is_batched=True) as results, trio.CancelScope() as scope:
        results.checkpoint_seconds = 0.0
        models = cast(Models, DyingModels(rows_before_death, scope))
        attempts = Attempts(models, is_decoupled=False, patience=0.0)
        window = Window(16, 1 << 20, state.position)
        await Run(rows, results, states, attempts, state, in_flight=5, window=window).run()
    rows.close()
    return states.read() or state


def spoil(path: Path, rest: random.Random) -> None:
    """What comes after the last checkpoint is cut off somewhere, or torn."""
    if not path.is_file():
        return
    with path.open("ab") as file:
        file.write(b'{"index":3,"resp'[: rest.randrange(17)])


def found_in(place: Path, pattern: str) -> list[Any]:
    paths = sorted(place.glob(pattern)) if place.is_dir() else [place]
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.jsonl", "out"])
@given(st.lists(st.integers(0, 40), max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=8)  # each writes some hundred states to the disk
def test_each_row_is_there_once(name: str, deaths: list[int], rest: random.Random) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "in.jsonl").write_text("".join(f'{{"X": [{row}]}}\n' for row in range(ROWS)))
        place = output_place(folder / name, DataFormat.JSON_LINES, Shard())
        for rows_before_death in deaths:
            trio.run(run_once, folder, place, rows_before_death)
            spoil(folder / "out.jsonl", rest)
            spoil(folder / "out.jsonl.errors.jsonl", rest)
        state = trio.run(run_once, folder, place, 10 * ROWS)
        assert (state.done, state.is_complete) == (ROWS, True)
        results = found_in(folder / name, "results-*")
        errors = found_in(folder / ("out.jsonl.errors.jsonl" if place.is_file else name), "errors-*")
        blamed = {line["index"] for line in errors if "ran this row alone" in line["error"]["message"]}
        failed = {row for row in range(ROWS) if row % 10 == 7} | blamed
        assert [line["index"] for line in errors] == sorted(failed)
        assert state.failed == len(failed)
        assert {line["index"]: line["response"]["outputs"][0]["data"] for line in results} == {
            row: [2 * row] for row in range(ROWS) if row not in failed
        }
        assert [line["index"] for line in results] == sorted(line["index"] for line in results)
        # Only a process that has died again and again without any row in between, but before the first, blames one.
        assert not blamed or deaths.count(0) >= MOST_CRASHES_ALONE - 1
