"""Models with `sequence_batching` from a repository on disk: what loads, and what is refused and how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import InitialState, ModelConfig, SequenceState
from repository.pbtxt import format_pbtxt
from tests.actors.core.test_server_core import running
from tests.actors.fakes import tensor
from tests.actors.scheduling.sequence.sequences import config
from tests.actors.scheduling.sequence.test_batcher import adder

SUM = SequenceState(
    "SUM_IN", "SUM_OUT", DataType.FP32, (2,), (InitialState(DataType.FP32, (2,), data_file="start", name="start"),)
)


def add_model(repository: Path, name: str, of: ModelConfig) -> Path:
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(format_pbtxt(replace(of, name=name)))
    return directory


def request(value: float, *, start: bool = False) -> InferenceRequest:
    return InferenceRequest("m", [tensor(value=value)], sequence_id=7, sequence_start=start)


async def test_a_model_with_states_from_files_serves(tmp_path: Path) -> None:
    directory = add_model(tmp_path, "m", config(state=(SUM,)))
    (directory / "initial_state").mkdir()
    (directory / "initial_state" / "start").write_bytes(np.array([100, 200], dtype=np.float32).tobytes())
    async with running(tmp_path, backend=adder()) as core:  # type: ignore[arg-type]  # any backend does
        assert core.is_ready()
        assert [entry.name for entry in core.model_metadata("m").outputs] == ["OUT"]
        totals = [
            (await core.infer(request(value, start=start))).outputs[0].as_numpy().tolist()
            for value, start in ((1, True), (2, False), (5, True))
        ]
        assert totals == [[[101, 201]], [[103, 203]], [[105, 205]]]
        with pytest.raises(InvalidArgument, match="unexpected inference input 'SUM_IN' for model 'm'"):
            await core.infer(
                InferenceRequest("m", [tensor(), Tensor.from_numpy("SUM_IN", np.zeros((1, 2), np.float32))])
            )


# A configuration, and why it is not served.
REFUSED = {
    "no file": (config(state=(SUM,)), "Not found: failed to read the initial_state of state 'SUM_IN' of model 'm'"),
    "growable memory on a CPU": (
        config(
            state=(
                SequenceState(
                    "SUM_IN",
                    "SUM_OUT",
                    DataType.FP32,
                    (2,),
                    use_same_buffer_for_input_output=True,
                    use_growable_memory=True,
                ),
            )
        ),
        "'use_growable_memory' can only work with KIND_GPU model instances right now.",
    ),
    "growable memory of two buffers": (
        config(state=(SequenceState("SUM_IN", "SUM_OUT", DataType.FP32, (2,), use_growable_memory=True),)),
        "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'SUM_IN'.",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_is_refused_by_name(tmp_path: Path, case: tuple[ModelConfig, str]) -> None:
    of, reason = case
    add_model(tmp_path, "m", of)
    async with running(tmp_path, backend=adder()) as core:  # type: ignore[arg-type]  # any backend does
        (entry,) = await core.repository_index()
        assert entry.state == "UNAVAILABLE"
        assert reason in entry.reason


async def test_one_buffer_for_both_states_is_accepted(tmp_path: Path) -> None:
    state = SequenceState("SUM_IN", "SUM_OUT", DataType.FP32, (2,), use_same_buffer_for_input_output=True)
    add_model(tmp_path, "m", config(state=(state,)))
    async with running(tmp_path, backend=adder()) as core:  # type: ignore[arg-type]  # any backend does
        assert core.is_ready()
