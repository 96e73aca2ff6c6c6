"""What is added to a request of a sequence and taken from its response."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from actors.scheduling.sequence.records import LiveSequence, Step
from actors.scheduling.sequence.tensors import SequenceTensors
from backends.interface import Rescheduled
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import Control, ControlInput, ControlKind, ModelConfig, ModelOutput, SequenceState
from tests.actors.fakes import tensor
from tests.actors.scheduling.sequence.sequences import Caller, config, id_control

STATE = SequenceState("S_IN", "S_OUT", DataType.INT32, (2,))
GROWING = SequenceState("S_IN", "S_OUT", DataType.INT32, (-1,))
CONTROLS = (
    ControlInput("START", (Control(ControlKind.SEQUENCE_START, int32_false_true=(0, 1)),)),
    ControlInput("END", (Control(ControlKind.SEQUENCE_END, fp32_false_true=(-1.0, 0.5)),)),
    ControlInput("READY", (Control(ControlKind.SEQUENCE_READY, bool_false_true=(True, False)),)),
    id_control(),
)


def state(*values: int, name: str = "S_IN", rows: int = 1) -> Tensor:
    return Tensor.from_numpy(name, np.array([values] * rows, dtype=np.int32))


def made(of: ModelConfig) -> SequenceTensors:
    return SequenceTensors(of, {"S_IN": state(0, 0)})


def step(
    sequence: LiveSequence | None = None,
    *,
    start: bool = False,
    end: bool = False,
    outputs: tuple[str, ...] = (),
    value: float = 0.0,
) -> Step:
    item = Caller(outputs=outputs, value=value, id="r").item
    return Step(sequence or LiveSequence(7), item, item.request, None, is_start=start, is_end=end)


def values(request: InferenceRequest) -> dict[str, Any]:
    return {each.name: each.as_numpy().tolist() for each in request.inputs}


def response(*outputs: Tensor) -> InferenceResponse:
    return InferenceResponse("m", 1, [tensor(name="OUT"), *outputs])


# Controls


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (True, False, {"START": [[1]], "END": [[-1.0]], "READY": [[False]]}),
        (False, True, {"START": [[0]], "END": [[0.5]], "READY": [[False]]}),
    ],
)
def test_flags_have_the_values_and_the_type_of_their_pair(start: bool, end: bool, expected: dict[str, Any]) -> None:
    dressed = made(config(control_input=CONTROLS)).dressed(step(start=start, end=end))
    found = values(dressed)
    assert {name: found[name] for name in expected} == expected
    types = {each.name: each.datatype for each in dressed.inputs}
    assert (types["START"], types["END"], types["READY"]) == (DataType.INT32, DataType.FP32, DataType.BOOL)
    assert (dressed.sequence_start, dressed.sequence_end) == (start, end)


def test_a_template_says_nothing_of_inputs_that_its_request_did_not_have() -> None:
    given = step(start=True)
    given.request.template = object()
    assert made(config(control_input=CONTROLS)).dressed(given).template is None


def test_without_batching_a_control_has_one_dimension() -> None:
    dressed = made(config(max_batch_size=0, control_input=CONTROLS)).dressed(step(start=True))
    assert {each.name: each.shape for each in dressed.inputs if each.name != "IN"} == {
        "START": (1,),
        "END": (1,),
        "READY": (1,),
        "CORRID": (1,),
    }


HUGE = 2**64 - 2


@pytest.mark.parametrize(
    ("data_type", "id", "expected"),
    [
        (DataType.UINT64, HUGE, HUGE),
        (DataType.INT64, HUGE, -2),
        (DataType.UINT32, 2**32 + 5, 5),
        (DataType.INT32, 2**32 + 2**31, -(2**31)),
        (DataType.BYTES, "größe", "größe".encode()),
        (DataType.BYTES, 12, b"12"),  # of an iterative sequence
    ],
)
def test_the_correlation_id_in_each_type(data_type: DataType, id: int | str, expected: object) -> None:
    """Numbers that do not fit are cut off."""
    tensors = made(config(control_input=(id_control(data_type),)))
    dressed = tensors.dressed(step(LiveSequence(id), start=True))
    assert dressed.inputs[-1].datatype is data_type
    assert dressed.inputs[-1].as_numpy().tolist() == [[expected]]
    assert dressed.sequence_id == id


def test_what_the_client_sent_is_left_alone() -> None:
    one = step(start=True, outputs=("OUT",), value=3.0)
    dressed = made(config(control_input=CONTROLS, state=(STATE,))).dressed(one)
    assert [each.name for each in one.request.inputs] == ["IN"]
    assert one.request.requested_outputs == ("OUT",)
    assert (dressed.id, dressed.inputs[0]) == ("r", one.request.inputs[0])


@pytest.mark.parametrize(("data_type", "nobody"), [(DataType.UINT32, 0), (DataType.BYTES, b"")])
def test_a_row_without_a_request_looks_like_one_with_all_flags_false(data_type: DataType, nobody: object) -> None:
    tensors = made(config(control_input=(*CONTROLS[:3], id_control(data_type)), state=(STATE,)))
    one = step(LiveSequence("s" if data_type is DataType.BYTES else 7), start=True, end=True, value=3.0)
    tensors.dressed(one)
    null = tensors.null(one)
    assert values(null) == {
        "IN": [[3.0, 3.0]],
        "START": [[0]],
        "END": [[-1.0]],
        "READY": [[True]],
        "CORRID": [[nobody]],
        "S_IN": [[0, 0]],
    }
    assert (null.id, null.sequence_id, null.sequence_start, null.sequence_end) == ("", 0, False, False)


# States


def test_the_output_state_is_the_next_input_state_and_start_resets_it() -> None:
    tensors = made(config(state=(STATE,)))
    sequence = LiveSequence(7)
    first = step(sequence, start=True)
    assert values(tensors.dressed(first))["S_IN"] == [[0, 0]]
    tensors.undressed(first, response(state(1, 2, name="S_OUT")))
    second = step(sequence)
    assert values(tensors.dressed(second))["S_IN"] == [[1, 2]]
    assert values(tensors.dressed(step(sequence, start=True)))["S_IN"] == [[0, 0]]


@pytest.mark.parametrize(
    "reply", [InvalidArgument("no"), response(), Rescheduled()], ids=["error", "no state", "round without a state"]
)
def test_without_an_output_state_the_state_stays(reply: Any) -> None:
    tensors = made(config(state=(STATE,)))
    one = step(start=True)
    tensors.dressed(one)
    assert tensors.undressed(one, reply) is reply
    assert one.sequence.states[0].as_numpy().tolist() == [[0, 0]]


def test_a_round_of_an_iterative_sequence_hands_its_state_on() -> None:
    tensors = made(config(state=(STATE,), iterative=True))
    one = step(start=True)
    tensors.dressed(one)
    tensors.undressed(one, Rescheduled([state(5, 6, name="S_OUT")]))
    one.is_start = False
    assert values(tensors.dressed(one))["S_IN"] == [[5, 6]]


@pytest.mark.parametrize(
    ("is_listed", "requested", "sent", "expected"),
    [
        (False, (), (), ["OUT"]),
        (False, ("OUT",), ("OUT", "S_OUT"), ["OUT"]),
        (True, (), (), ["OUT", "S_OUT"]),
        (True, ("OUT",), ("OUT", "S_OUT"), ["OUT"]),
        (True, ("S_OUT",), ("S_OUT",), ["S_OUT"]),
    ],
)
def test_a_client_sees_the_state_only_if_it_is_an_output_too_and_wanted(
    is_listed: bool, requested: tuple[str, ...], sent: tuple[str, ...], expected: list[str]
) -> None:
    of = config(state=(STATE,))
    if is_listed:
        output = ModelOutput(name="S_OUT", data_type=DataType.INT32, dims=(2,))
        of = msgspec.structs.replace(of, output=(*of.output, output))
    tensors = made(of)
    one = step(start=True, outputs=requested)
    assert tensors.dressed(one).requested_outputs == sent
    outputs = [each for each in response(state(1, 2, name="S_OUT")).outputs if not sent or each.name in sent]
    reply = tensors.undressed(one, InferenceResponse("m", 1, outputs))
    assert isinstance(reply, InferenceResponse)
    assert [each.name for each in reply.outputs] == expected
    assert one.sequence.states[0].as_numpy().tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "wrong",
    [state(1, 2, 3, name="S_OUT"), Tensor.from_numpy("S_OUT", np.zeros((1, 2), np.int64))],
    ids=["shape", "type"],
)
def test_a_state_that_is_not_as_configured_is_the_models_fault(wrong: Tensor) -> None:
    tensors = made(config(state=(STATE,)))
    one = step(start=True)
    tensors.dressed(one)
    reply = tensors.undressed(one, response(wrong))
    assert isinstance(reply, Internal)
    assert "model 'm', state output 'S_OUT': the configuration expects TYPE_INT32 of shape [1, 2]" in reply.message
    assert one.sequence.states[0].as_numpy().tolist() == [[0, 0]]


def test_only_variable_states_say_what_may_share_a_batch() -> None:
    assert made(config(state=(STATE,))).key_of_states(step(start=True)) is None
    tensors = made(config(state=(GROWING,)))
    one = step(start=True)
    assert tensors.key_of_states(one) == ((1, 2),)
    tensors.dressed(one)
    tensors.undressed(one, response(state(1, 2, 3, name="S_OUT")))
    assert tensors.key_of_states(step(one.sequence)) == ((1, 3),)
    assert tensors.key_of_states(step(one.sequence, start=True)) == ((1, 2),)


def test_a_state_keeps_nothing_of_its_batch_but_itself() -> None:
    """The other rows' memory must not live as long as a sequence that pauses."""
    tensors = made(config(state=(STATE,)))
    batch = np.zeros((3, 2), dtype=np.int32)
    whole = batch.reshape(-1).view(np.uint8).data
    one, alone = step(start=True), step(start=True)
    for each in (one, alone):
        tensors.dressed(each)
    tensors.undressed(one, response(Tensor("S_OUT", DataType.INT32, (1, 2), whole[8:16])))
    assert isinstance(one.sequence.states[0].data, bytes)
    single = state(1, 2, name="S_OUT")
    tensors.undressed(alone, response(single))
    assert alone.sequence.states[0].data is single.data
