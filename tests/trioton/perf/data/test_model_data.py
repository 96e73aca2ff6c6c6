"""From words to calls: what a sender gets of a model's data."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.trioton.perf.data.models import described
from trioton.perf.caller import Control, Cycle, DataError, ModelDescription, Part, Payload, Result
from trioton.perf.data.model_data import ModelData
from trioton.perf.data.payloads import Form
from trioton.perf.data.regions import SystemMemory
from trioton.perf.data.sources import Sources

MODEL = described(("A", "FP32", [2]), batch=8)


async def payloads(data: ModelData, model: ModelDescription = MODEL, count: int = 20) -> list[Payload]:
    """What is sent one after the other; calls end at once."""
    control: Control = None  # type: ignore[assignment]
    made: list[Payload] = []
    async with data.open(model, lambda payload: payload, control, Part()) as source:
        for _ in range(count):
            call = source.take()
            assert call is not None
            made.append(call.data)
            source.ended(Result(call, 0, 0, 0, 0))
    return made


async def test_by_default_data_is_random() -> None:
    made = await payloads(ModelData(batch=2))
    assert {payload.inputs[0].shape for payload in made} == {(2, 2)}
    assert len({bytes(payload.inputs[0].data) for payload in made}) == 8  # 16 rows in pairs


async def test_calls_are_prepared_once() -> None:
    encoded: list[Payload] = []
    control: Control = None  # type: ignore[assignment]
    async with ModelData().open(MODEL, encoded.append, control, Part()) as source:
        assert isinstance(source, Cycle)
        for _ in range(100):
            source.take()
    assert len(encoded) == 16


async def test_outputs_and_parameters() -> None:
    (made,) = await payloads(ModelData(outputs=("OUT",), parameters={"a": 1}), count=1)
    assert made.outputs == ("OUT",)
    assert made.parameters == {"a": 1}
    with pytest.raises(DataError, match="no output 'X'; it has 'OUT'"):
        await payloads(ModelData(outputs=("X",)))


async def test_a_model_with_sequences_gets_them() -> None:
    model = described(("A", "FP32", [2]), sequence_batching={"direct": {}})
    made = await payloads(ModelData(), model)
    assert made[0].sequence_start
    assert {payload.sequence_id for payload in made[:10]} == {1}


async def test_streams_of_a_file_are_sequences(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [[{"A": [1, 1]}, {"A": [2, 2]}], [{"A": [3, 3]}]]}))
    made = await payloads(ModelData(sources=Sources(words=(str(path),)), is_sequential=True), count=3)
    seen = [(payload.inputs[0].as_numpy()[0, 0], payload.sequence_id, payload.sequence_end) for payload in made]
    assert seen == [(1, 1, False), (2, 1, True), (3, 2, True)]


async def test_bodies_for_openai() -> None:
    (made,) = await payloads(ModelData(form=Form.OPENAI), ModelDescription("llm"), count=1)
    assert made.body is not None
    assert made.body["model"] == "llm"


async def test_bodies_have_no_place_in_shared_memory() -> None:
    with pytest.raises(DataError, match="shared memory is for tensors"):
        await payloads(ModelData(form=Form.GENERATE, memory=SystemMemory()))


def test_it_can_be_sent_to_other_processes() -> None:
    data: Any = ModelData(memory=SystemMemory())
    assert pickle.loads(pickle.dumps(data)) == data
