"""Responses of every wire as JSON has them, and outputs that are expected."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from protocol.messages import Tensor
from protocol.proto import message_class
from tests.trioton.perf.data.models import slots
from trioton.perf.caller import Call, Payload, Result
from trioton.perf.data.dataset import Step
from trioton.perf.data.payloads import ExpectingPayload, tensor_payloads
from trioton.perf.data.responses import inputs_of, mismatch, output_of
from trioton.perf.target import Wire

NUMBERS = np.array([1.5, float("nan")], np.float32)


def tensor(name: str, array: Any) -> Tensor:
    return Tensor.from_numpy(name, np.asarray(array))


def infer_response() -> Any:
    message: Any = message_class("inference.ModelInferResponse")()
    for each in (tensor("A", np.array([1, 2], np.int32)), tensor("T", np.array([b"x"], object))):
        message.outputs.add(name=each.name, datatype=each.datatype.name, shape=each.shape)
        message.raw_output_contents.append(bytes(each.data))
    return message


def streamed() -> bytes:
    message: Any = message_class("inference.ModelStreamInferResponse")()
    message.infer_response.CopyFrom(infer_response())
    found: bytes = message.SerializeToString()
    return found


def body(*, is_binary: bool) -> bytes:
    """As a server writes it, with a name that is no ASCII."""
    numbers: dict[str, Any] = {"name": "A", "datatype": "INT32", "shape": [2]}
    texts: dict[str, Any] = {"name": "T", "datatype": "BYTES", "shape": [1]}
    if not is_binary:
        outputs = [numbers | {"data": [1, 2]}, texts | {"data": ["x"]}]
        return json.dumps({"model_name": "größe", "outputs": outputs}, ensure_ascii=False).encode()
    outputs = [
        numbers | {"parameters": {"binary_data_size": 8}},
        texts | {"parameters": {"binary_data_size": 5}},
    ]
    head = json.dumps({"model_name": "größe", "outputs": outputs}, ensure_ascii=False).encode()
    return head + np.array([1, 2], "<i4").tobytes() + b"\1\0\0\0x"


@pytest.mark.parametrize(
    ("wire", "data"),
    [
        (Wire.GRPC, infer_response().SerializeToString()),
        (Wire.STREAM, streamed()),
        (Wire.HTTP, body(is_binary=True)),
        (Wire.HTTP, body(is_binary=False)),
    ],
)
def test_outputs(wire: Wire, data: bytes) -> None:
    assert output_of(wire, data) == {"A": [1, 2], "T": "x"}


@pytest.mark.parametrize("wire", [Wire.GRPC, Wire.STREAM, Wire.HTTP])
@pytest.mark.parametrize("data", [b"{", b"\xff\xff", b'{"outputs": [{"name": "A", "datatype": "X", "data": 1}]} '])
def test_what_cannot_be_read_is_left_out(wire: Wire, data: bytes) -> None:
    assert isinstance(output_of(wire, data), dict)


def test_events_are_texts() -> None:
    assert output_of(Wire.OPENAI, b'{"choices": []}') == {"response": '{"choices": []}'}


def test_inputs() -> None:
    assert inputs_of(Payload(inputs=[tensor("A", NUMBERS[:1]), tensor("T", np.array([b"a", b"b"], object))])) == {
        "A": [1.5],
        "T": ["a", "b"],
    }
    assert inputs_of(Payload(body={"prompt": "x"})) == {"payload": '{"prompt": "x"}'}


def result(payload: Payload, data: bytes, **more: Any) -> Result:
    return Result(Call(None, key=payload), 0, 0, 0, 0, responses=[data], **more)


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ({"A": np.array([1, 2], np.int32)}, ""),
        ({"A": np.array([1, 3], np.int32)}, "output 'A' is not what the data expects"),
        ({"B": np.array([1], np.int32)}, "there is no output 'B'"),
    ],
)
def test_a_mismatch(expected: dict[str, Any], text: str) -> None:
    payload = ExpectingPayload(expected={name: tensor(name, array) for name, array in expected.items()})
    data = infer_response().SerializeToString()
    assert mismatch(Wire.GRPC, result(payload, data)).startswith(text)
    assert bool(mismatch(Wire.GRPC, result(payload, data))) == bool(text)
    assert not mismatch(Wire.GRPC, result(payload, data, error="no"))
    assert not mismatch(Wire.GRPC, result(Payload(), data))


def test_not_a_number_is_the_same_as_itself() -> None:
    message: Any = message_class("inference.ModelInferResponse")()
    message.outputs.add(name="A", datatype="FP32", shape=[2])
    message.raw_output_contents.append(NUMBERS.tobytes())
    payload = ExpectingPayload(expected={"A": tensor("A", NUMBERS)})
    assert not mismatch(Wire.GRPC, result(payload, message.SerializeToString()))


def test_rows_of_a_batch_expect_theirs() -> None:
    model = slots(("A", "FP32", [1]), batch=4)
    steps = [
        Step(
            tensors={"A": tensor("A", np.ones(1, np.float32))},
            expected={"OUT": tensor("OUT", np.array([n, n], np.float32))},
        )
        for n in (1, 2)
    ]
    (payload,) = tensor_payloads(steps, model, batch=2)
    assert isinstance(payload, ExpectingPayload)
    assert payload.expected["OUT"].as_numpy().tolist() == [[1, 1], [2, 2]]
