"""Requests of steps: batches, bodies, and what differs between calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from protocol.messages import Tensor
from tests.trioton.perf.data.models import slots
from trioton.perf.caller import DataError, Payload
from trioton.perf.data.dataset import Step
from trioton.perf.data.inputs import ModelSlots, TensorSlot
from trioton.perf.data.mixture import Mixture, Weighted
from trioton.perf.data.payloads import Form, body_payloads, tensor_payloads
from trioton.perf.data.prompts import Prompts

ONE = slots(("A", "FP32", [-1]), batch=8)


def step(*values: float, name: str = "A", **more: Any) -> Step:
    return Step(tensors={name: Tensor.from_numpy(name, np.array(values, np.float32))}, **more)


def values(payloads: list[Payload]) -> list[Any]:
    return [payload.inputs[0].as_numpy().tolist() for payload in payloads]


def test_one_row_is_not_copied() -> None:
    row = step(1, 2)
    (payload,) = tensor_payloads([row], ONE)
    assert payload.inputs[0].shape == (1, 2)
    assert payload.inputs[0].data is row.tensors["A"].data


def test_rows_of_a_batch_follow_each_other() -> None:
    payloads = tensor_payloads([step(1), step(2), step(3)], ONE, batch=2)
    assert values(payloads) == [[[1], [2]], [[3], [1]]]
    assert [payload.inferences for payload in payloads] == [2, 2]


def test_a_batch_of_more_rows_than_there_are() -> None:
    assert values(tensor_payloads([step(1)], ONE, batch=3)) == [[[1], [1], [1]]]


def test_rows_of_different_shapes() -> None:
    stream = [step(1), step(2, 3)]
    with pytest.raises(DataError, match=r"input 'A' has the shapes \[1\] and \[2\]"):
        tensor_payloads(stream, ONE, batch=2)
    assert values(tensor_payloads(stream, ONE, batch=2, may_repeat=True)) == [[[1], [1]]]


def test_an_optional_input_in_a_part_of_a_batch() -> None:
    more = Step(tensors={**step(1).tensors, **step(1, name="B").tensors})
    with pytest.raises(DataError, match="optional input 'B' is in some rows of a batch only"):
        tensor_payloads([step(1), more], ONE, batch=2)


def test_a_shape_tensor_is_that_of_the_first_row() -> None:
    slot = TensorSlot("A", ONE.inputs[0].datatype, (1,), is_shape_tensor=True)
    model = ModelSlots("m", (slot,), (), is_batching=True)
    assert values(tensor_payloads([step(1), step(2)], model, batch=2)) == [[1]]


def test_without_a_batch_dimension() -> None:
    model = slots(("A", "FP32", [1]))
    assert values(tensor_payloads([step(1)], model)) == [[1]]
    with pytest.raises(DataError, match="no batch dimension"):
        tensor_payloads([step(1)], model, batch=2)


def test_whole_requests_stay_as_they_are() -> None:
    whole = Step(tensors={"A": Tensor.from_numpy("A", np.ones((3, 1), np.float32))}, rows=3, parameters={"a": 1})
    (payload,) = tensor_payloads([whole], ONE, parameters={"a": 0, "b": 2})
    assert payload.inputs[0].shape == (3, 1)
    assert payload.inferences == 3
    assert payload.parameters == {"a": 1, "b": 2}
    with pytest.raises(DataError, match="have their own batch sizes"):
        tensor_payloads([whole], ONE, batch=2)


def test_bodies_of_tensors() -> None:
    texts = Tensor.from_numpy("T", np.array(["x"]))
    (payload,) = body_payloads([Step(tensors={"T": texts, **step(1, 2).tensors})], ONE, Form.GENERATE)
    assert payload.body == {"T": "x", "A": [1.0, 2.0]}


def test_bodies_that_are_given() -> None:
    (payload,) = body_payloads([Step(body={"prompt": "x"})], ONE, Form.OPENAI, parameters={"max_tokens": 3})
    assert payload.body == {"prompt": "x", "max_tokens": 3}
    with pytest.raises(DataError, match="'payload' of each entry"):
        body_payloads([step(1)], ONE, Form.OPENAI)


@pytest.mark.parametrize("is_chat", [False, True])
def test_prompts_are_made_by_a_seed(is_chat: bool) -> None:
    def bodies(seed: int) -> list[Any]:
        return [step.body for step in Prompts(seed=seed, count=5, words=7, is_chat=is_chat).dataset("m").steps]

    assert bodies(1) == bodies(1) != bodies(2)
    text = bodies(1)[0]["messages"][0]["content"] if is_chat else bodies(1)[0]["prompt"]
    assert len(text.split()) == 7
    assert bodies(1)[0]["max_tokens"] == 64


def test_calls_of_equal_payloads_share_what_was_encoded() -> None:
    encoded: list[Payload] = []

    def encode(payload: Payload) -> Payload:
        encoded.append(payload)
        return payload

    mixture = Mixture(
        cancel_share=0.05,
        cancel_after=0.01,
        priorities=(Weighted(1, 0.75), Weighted(2, 0.25)),
        timeout_microseconds=500,
    )
    calls = mixture.calls([Payload(inferences=2), Payload(inferences=4)], encode)
    assert len(calls) == 1000
    assert len(encoded) == 4
    assert Counter(call.cancel_after for call in calls) == {None: 950, 0.01: 50}
    assert Counter(call.data.priority for call in calls) == {1: 750, 2: 250}
    assert {call.data.timeout_microseconds for call in calls} == {500}
    assert [call.inferences for call in calls[:4]] == [2, 4, 2, 4]


def test_calls_that_do_not_differ_are_as_many_as_payloads() -> None:
    calls = Mixture(priorities=(Weighted(3, 1.0),)).calls([Payload()], lambda payload: payload)
    assert [call.data.priority for call in calls] == [3]
