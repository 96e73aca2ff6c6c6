"""A request that matches a template decodes as by the parser."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.http.codec.infer import DecodedRequest, decode_infer_request
from protocol.http.codec.request_templates import MAX_TEMPLATES, RequestTemplates


def sized(**members: Any) -> dict[str, Any]:
    return {"name": "A", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}, **members}


def read(templates: RequestTemplates, members: dict[str, Any], data: bytes, *, version: int = -1) -> DecodedRequest:
    text = json.dumps(members).encode()
    body = text + data
    known = templates.find(body, len(text), model_name="m", model_version=version)
    return known or templates.decode(body, len(text), model_name="m", model_version=version, max_input_size=10_000)


def described(decoded: DecodedRequest) -> Any:
    request = decoded.request
    return (
        [(each.name, each.datatype, each.shape, bytes(each.data)) for each in request.inputs],
        (request.model_name, request.model_version, request.id, request.requested_outputs, request.parameters),
        (request.sequence_id, request.sequence_start, request.sequence_end, request.priority),
        request.timeout_microseconds,
        decoded.encoding,
        decoded.placement,
    )


MEMBERS = st.fixed_dictionaries(
    {
        "inputs": st.sampled_from(
            [[sized()], [sized(), sized(name="B")], [sized(), sized(shape=[0], parameters=None, data=[])]]
        )
    },
    optional={
        "id": st.sampled_from(["", "7"]),
        "outputs": st.sampled_from([[], [{"name": "O"}], [{"name": "O", "parameters": {"binary_data": True}}]]),
        "parameters": st.sampled_from(
            [
                {},
                {"binary_data_output": True},
                {"priority": 2, "timeout": 5, "mine": "x"},
                {"sequence_id": 4, "sequence_start": True},
            ]
        ),
    },
)


@given(MEMBERS, st.lists(st.binary(min_size=16, max_size=16), min_size=2, max_size=4))
def test_a_form_means_what_its_request_meant(members: dict[str, Any], datas: list[bytes]) -> None:
    templates = RequestTemplates()
    text = json.dumps(members).encode()
    size = 8 * sum(tensor["parameters"] is not None for tensor in members["inputs"])
    for data in datas:
        usual = decode_infer_request(
            text + data[:size], len(text), model_name="m", model_version=-1, max_input_size=10_000
        )
        assert described(read(templates, members, data[:size])) == described(usual)


def test_the_same_form_for_another_model_and_version() -> None:
    templates = RequestTemplates()
    for version in (-1, 3):
        request = read(templates, {"inputs": [sized()]}, b"\0" * 8, version=version).request
        assert (request.model_name, request.model_version) == ("m", version)


def test_requests_of_one_form_share_nothing_that_changes() -> None:
    templates = RequestTemplates()
    members = {"inputs": [sized()], "parameters": {"mine": 1}}
    first, second = (read(templates, members, b"\0" * 8).request for _ in range(2))
    first.parameters["more"] = 2
    first.inputs.clear()
    third = read(templates, members, b"\0" * 8).request
    assert second.parameters == third.parameters == {"mine": 1}
    assert len(third.inputs) == 1


def test_data_is_a_view_that_nobody_writes_to() -> None:
    templates = RequestTemplates()
    for _ in range(2):
        (tensor,) = read(templates, {"inputs": [sized()]}, np.array([1, 2], np.float32).tobytes()).request.inputs
        assert tensor.datatype is DataType.FP32
        assert isinstance(tensor.data, memoryview)
        assert tensor.data.readonly
        assert tensor.as_numpy().tolist() == [1, 2]


@pytest.mark.parametrize("size", [0, 7, 9])
def test_data_of_another_size_is_refused_as_ever(size: int) -> None:
    templates = RequestTemplates()
    read(templates, {"inputs": [sized()]}, b"\0" * 8)
    with pytest.raises(InvalidArgument, match=r"unexpected (size for input|additional input data)"):
        read(templates, {"inputs": [sized()]}, b"\0" * size)


def test_more_forms_than_are_kept() -> None:
    templates = RequestTemplates()
    for count in range(2 * MAX_TEMPLATES + 1):
        members = {"inputs": [sized()], "parameters": {"mine": count}}
        assert read(templates, members, b"\0" * 8).request.parameters == {"mine": count}
        assert read(templates, members, b"\0" * 8).request.parameters == {"mine": count}
