"""Controls and states as a model's file must have them, and how completion leaves them out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, ServerError
from repository.completion import TensorSignature, check_against_model, complete_from_model
from repository.model_config import (
    Control,
    ControlInput,
    ControlKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    SequenceState,
)
from repository.sequence_tensors import control_inputs, hidden_outputs, state_inputs, state_outputs

FP32 = DataType.FP32

CONFIG = ModelConfig(
    name="m",
    max_batch_size=4,
    input=(ModelInput(name="IN", data_type=FP32, dims=(3,)),),
    output=(ModelOutput(name="OUT", data_type=FP32, dims=(3,)),),
    sequence_batching=ModelSequenceBatching(
        control_input=(
            ControlInput("START", (Control(ControlKind.SEQUENCE_START, int32_false_true=(0, 1)),)),
            ControlInput("READY", (Control(ControlKind.SEQUENCE_READY, fp32_false_true=(0, 1)),)),
            ControlInput("END", (Control(ControlKind.SEQUENCE_END, bool_false_true=(False, True)),)),
            ControlInput("ID", (Control(ControlKind.SEQUENCE_CORRID, data_type=DataType.BYTES),)),
        ),
        state=(SequenceState("S_IN", "S_OUT", FP32, (2,)), SequenceState("T_IN", "T_OUT", FP32, (-1,))),
    ),
)


def signature(name: str, *dims: int, data_type: DataType = FP32) -> TensorSignature:
    return TensorSignature(name, data_type, (-1, *dims))


INPUTS = (
    signature("IN", 3),
    signature("START", 1, data_type=DataType.INT32),
    signature("READY", 1),
    signature("END", -1, data_type=DataType.BOOL),
    signature("ID", 1, data_type=DataType.BYTES),
    signature("S_IN", 2),
    signature("T_IN", -1),
)
OUTPUTS = (signature("OUT", 3), signature("S_OUT", 2), signature("T_OUT", -1))


def test_what_a_sequence_batcher_adds() -> None:
    assert [(entry.name, entry.data_type, entry.dims) for entry in control_inputs(CONFIG)] == [
        ("START", DataType.INT32, (1,)),
        ("READY", FP32, (1,)),
        ("END", DataType.BOOL, (1,)),
        ("ID", DataType.BYTES, (1,)),
    ]
    assert [entry.name for entry in state_inputs(CONFIG)] == ["S_IN", "T_IN"]
    assert [entry.dims for entry in state_outputs(CONFIG)] == [(2,), (-1,)]
    plain = ModelConfig(name="m")
    assert (control_inputs(plain), state_inputs(plain), state_outputs(plain), hidden_outputs(plain)) == ((),) * 4


def test_a_state_output_that_is_listed_is_not_hidden() -> None:
    listed = ModelOutput(name="S_OUT", data_type=FP32, dims=(2,))
    assert [entry.name for entry in hidden_outputs(CONFIG)] == ["S_OUT", "T_OUT"]
    assert [entry.name for entry in hidden_outputs(replace(CONFIG, output=(*CONFIG.output, listed)))] == ["T_OUT"]


def test_a_model_that_has_them_all_fits() -> None:
    check_against_model(CONFIG, INPUTS, OUTPUTS)


def without(name: str) -> Sequence[TensorSignature]:
    return [entry for entry in INPUTS if entry.name != name]


def changed(name: str, to: TensorSignature) -> Sequence[TensorSignature]:
    return [to if entry.name == name else entry for entry in INPUTS]


# The model's inputs and outputs, the kind of the error, and what it says.
WRONG: dict[str, tuple[Sequence[TensorSignature], Sequence[TensorSignature], type[ServerError], str]] = {
    "no control": (
        without("END"),
        OUTPUTS,
        Internal,
        "configuration specified sequence control 'END', but model does not provide that input",
    ),
    "a control of another shape": (
        changed("READY", signature("READY", 2)),
        OUTPUTS,
        InvalidArgument,
        "unable to load model 'm', sequence control 'READY' in model has dims [2] but dims [1] is expected",
    ),
    "a control without the batch": (
        changed("READY", TensorSignature("READY", FP32, (1,))),
        OUTPUTS,
        InvalidArgument,
        "unable to load model 'm', sequence control 'READY' in model has dims [] but dims [1] is expected",
    ),
    "a control of another type": (
        changed("START", signature("START", 1)),
        OUTPUTS,
        InvalidArgument,
        "unable to load model 'm', sequence control 'START', the model expects data-type TYPE_FP32 but the model "
        "configuration specifies data-type TYPE_INT32",
    ),
    "one input more": (
        (*INPUTS, signature("MORE", 1)),
        OUTPUTS,
        InvalidArgument,
        "unable to load model 'm', configuration expects 7 inputs, model provides 8",
    ),
    "no state input": (without("S_IN"), OUTPUTS, InvalidArgument, "unexpected inference input 'S_IN', allowed inputs"),
    "no state output": (INPUTS, OUTPUTS[:2], InvalidArgument, "unexpected inference output 'T_OUT', allowed outputs"),
    "a state of another type": (
        changed("S_IN", signature("S_IN", 2, data_type=DataType.INT64)),
        OUTPUTS,
        InvalidArgument,
        "configuration expects datatype TYPE_FP32 for input 'S_IN', model provides TYPE_INT64",
    ),
    "a state of another shape": (
        INPUTS,
        (OUTPUTS[0], signature("S_OUT", 3), OUTPUTS[2]),
        InvalidArgument,
        "model 'm', tensor 'S_OUT': the model expects 2 dimensions (shape [-1,3])",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_a_model_that_differs_is_refused(
    case: tuple[Sequence[TensorSignature], Sequence[TensorSignature], type[ServerError], str],
) -> None:
    inputs, outputs, kind, text = case
    with pytest.raises(kind) as caught:
        check_against_model(CONFIG, inputs, outputs)
    assert text in caught.value.message


def test_a_state_takes_any_size_that_the_model_leaves_open() -> None:
    """Also for its output, which models declare with less care than an input."""
    check_against_model(
        CONFIG, changed("S_IN", signature("S_IN", -1)), (OUTPUTS[0], signature("S_OUT", -1), OUTPUTS[2])
    )


def test_completion_leaves_controls_and_states_out() -> None:
    completed = complete_from_model(replace(CONFIG, input=(), output=()), inputs=INPUTS, outputs=OUTPUTS)
    assert completed.input == CONFIG.input
    assert completed.output == CONFIG.output
    assert completed.dynamic_batching is None


def test_a_state_that_cannot_be_batched_keeps_its_model_from_batching() -> None:
    config = ModelConfig(
        name="m",
        sequence_batching=ModelSequenceBatching(state=(SequenceState("S_IN", "S_OUT", FP32, (2, 1)),)),
    )
    inputs = [signature("IN", 3), TensorSignature("S_IN", FP32, (2, 1))]
    outputs = [signature("OUT", 3), TensorSignature("S_OUT", FP32, (2, 1))]
    completed = complete_from_model(config, inputs=inputs, outputs=outputs)
    assert completed.max_batch_size == 0
    assert [(entry.name, entry.dims) for entry in completed.input] == [("IN", (-1, 3))]
