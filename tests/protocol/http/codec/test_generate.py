"""The generate codec: plain JSON objects to requests, responses to plain JSON objects."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, PayloadTooLarge, ServerError
from protocol.http.codec.generate import decode_generate_request, encode_generate_response
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements

TEXT = ("text_input", "BYTES", (1,))


def decode(body: Any, *inputs: tuple[str, str, tuple[int, ...]], limit: int = 1000) -> InferenceRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    metadata = ModelMetadata("m", ("1",), "p", tuple(TensorMetadata(*tensor) for tensor in inputs), ())
    return decode_generate_request(text, metadata, model_version=3, max_input_size=limit)


def refused(body: Any, *inputs: tuple[str, str, tuple[int, ...]], limit: int = 1000) -> ServerError:
    with pytest.raises(ServerError) as caught:
        decode(body, *inputs, limit=limit)
    return caught.value


def tensors(request: InferenceRequest) -> dict[str, Any]:
    return {tensor.name: tensor.as_numpy().tolist() for tensor in request.inputs}


def test_the_worked_example_of_the_reference() -> None:
    """One tensor, two parameters; the id is a parameter as well."""
    body = {"id": "42", "text_input": "hi", "parameters": {"stream": False, "temperature": 0}}
    request = decode(body, TEXT)
    assert (request.model_name, request.model_version, request.id) == ("m", 3, "42")
    assert tensors(request) == {"text_input": [b"hi"]}
    assert request.parameters == {"id": "42", "stream": False, "temperature": 0}
    response = InferenceResponse(
        "m", 1, [Tensor("text_output", DataType.BYTES, (1,), encode_bytes_elements(["..."]))], "42"
    )
    assert encode_generate_response(response) == (
        b'{"id":"42","model_name":"m","model_version":"1","text_output":"..."}'
    )


def test_members_find_their_place() -> None:
    """Inputs of the model become tensors, also within `parameters` and also `id`; all else is a parameter."""
    body = {"id": "x", "a": 1, "b": 2.5, "c": "t", "d": True, "parameters": {"e": 5, "f": "y"}}
    request = decode(body, ("id", "BYTES", (1,)), ("e", "INT8", (1,)))
    assert request.id == "x"
    assert [(tensor.name, tensor.as_numpy().tolist()) for tensor in request.inputs] == [
        ("id", [b"x"]),
        ("e", [5]),
    ]
    assert request.parameters == {"a": 1, "b": 2.5, "c": "t", "d": True, "f": "y"}


def test_reserved_names_mean_nothing_here() -> None:
    body = {"sequence_id": 5, "sequence_start": True, "priority": 2, "timeout": 3, "triton_x": 1, "headers": "h"}
    request = decode(body)
    assert request.parameters == body
    assert (request.sequence_id, request.sequence_start, request.priority) == (0, False, 0)


@pytest.mark.parametrize(
    ("dims", "value", "shape"),
    [
        ((1,), 5, (1,)),
        ((-1,), [1, 2, 3], (3,)),
        ((-1, 1), 5, (1, 1)),
        ((-1, 2), [1, 2, 3, 4], (2, 2)),
        ((-1, -1), [1, 2, 3], (1, 3)),
        ((2, -1, 3, -1, 1), [*range(12)], (2, 1, 3, 2, 1)),
        ((), 5, ()),
        ((1, 1, 1), [5], (1, 1, 1)),
    ],
)
def test_shapes(dims: tuple[int, ...], value: Any, shape: tuple[int, ...]) -> None:
    """The innermost variable dimension takes all, the others are 1."""
    (tensor,) = decode({"x": value}, ("x", "INT32", dims)).inputs
    assert tensor.shape == shape
    assert tensor.as_numpy().reshape(-1).tolist() == (value if isinstance(value, list) else [value])


@pytest.mark.parametrize(
    ("dims", "value"), [((1,), [1, 2]), ((4, -1), [1, 2, 3]), ((-1, 0), [1]), ((2,), 5), ((), [1, 2])]
)
def test_shapes_that_do_not_come_out_even(dims: tuple[int, ...], value: Any) -> None:
    assert refused({"x": value}, ("x", "INT32", dims)).message == (
        f"The schema can not convert input 'x' to tensor with proper shape: expected {list(dims)}, got "
        f"{len(value) if isinstance(value, list) else 1} elements"
    )


def test_an_empty_array_is_an_input_without_shape_and_data() -> None:
    (tensor,) = decode({"x": []}, ("x", "FP32", (-1,))).inputs
    assert (tensor.shape, tensor.data) == ((), b"")


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("BOOL", True), ("UINT64", 2**64 - 1), ("INT8", -128), ("FP16", 0.5), ("BF16", -2.0), ("FP64", 1e300)],
)
def test_every_kind_of_number(datatype: str, value: Any) -> None:
    """Half floats too, which Triton does not take here."""
    assert tensors(decode({"x": value}, ("x", datatype, (1,)))) == {"x": [value]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "failed to parse the request JSON buffer: The document is empty at 0"),
        (b"{", "failed to parse the request JSON buffer: "),
        ([], "Unable to parse the request JSON: attempt to access JSON non-object as object, got array"),
        ({"id": 5}, "Unable to parse 'id': attempt to access JSON non-string as string, got 5"),
        ({"parameters": [1]}, "Expected JSON object for keyword: 'parameters': attempt to get members for non-object"),
        (
            {"x": [1]},
            "Converting keyword: 'x': parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        ({"x": None}, "Converting keyword: 'x': parameter 'x' has invalid type"),
        ({"parameters": {"a": {}}}, "Converting keyword: 'parameters': parameter 'a' has invalid type"),
        (
            {"parameters": {"parameters": {}}},
            "Converting keyword: 'parameters': parameter 'parameters' has invalid type",
        ),
        (b'{"text_input": "a", "text_input": "b"}', "keyword 'text_input' is given more than once"),
        (b'{"x": 1, "y": "x", "\\u0078": 2}', "keyword 'x' is given more than once"),
        (b'{"parameters": {"x": 1, "x": 1}}', "keyword 'x' is given more than once"),
        (b'{"parameters": {"x": 1}, "parameters": {"y": 1}}', "keyword 'parameters' is given more than once"),
        ({"x": 1, "parameters": {"x": 2}}, "keyword 'x' is given more than once"),
        ({"text_input": "a", "parameters": {"text_input": "b"}}, "keyword 'text_input' is given more than once"),
        (
            json.dumps({f"p{n}": n for n in range(50)}).encode()[:-1] + b', "p7": 1}',
            "keyword 'p7' is given more than once",
        ),
        (
            {"text_input": 5},
            "Unable to parse 'data': attempt to access JSON non-string as string for input 'text_input'",
        ),
        ({"text_input": None}, "Unable to parse 'data': attempt to access JSON non-string as string for input"),
        ({"text_input": {"a": 1}}, "Unable to parse 'data': attempt to access JSON non-string as string for input"),
        ({"text_input": [["a"]]}, "Unable to parse 'data': expected a value or an array of values for input"),
    ],
)
def test_wrong_bodies(body: Any, text: str) -> None:
    error = refused(body, TEXT)
    assert isinstance(error, InvalidArgument)
    assert error.message.startswith(text)


def test_a_name_that_is_also_a_value() -> None:
    """And one that is written with escapes, and another that ends like it."""
    body = {"text_input": "id", "id": "id", "parameters": {"x_id": "text_input", 'a"b': "\n", "größe": 1e300}}
    assert tensors(decode(body, TEXT)) == {"text_input": [b"id"]}


def test_an_input_that_is_called_parameters() -> None:
    text = "Keyword 'parameters' for nested schema also given as input tensor name"
    assert refused({"parameters": {}}, ("parameters", "BYTES", (1,))).message == text


def test_tensors_are_limited_together() -> None:
    inputs = ("a", "INT8", (-1,)), ("b", "INT8", (-1,))
    decode({"a": [0] * 60, "b": [0] * 40}, *inputs, limit=100)
    error = refused({"a": [0] * 60, "b": [0] * 41}, *inputs, limit=100)
    assert isinstance(error, PayloadTooLarge)
    assert error.message == (
        "request size of 101 bytes with input 'b' of size 41 bytes exceeds the maximum allowed input size of 100. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize("nested", [False, True])
def test_keywords_are_limited(nested: bool) -> None:
    """As the parameters of `infer` are, wherever they stand."""
    keywords = dict.fromkeys(map(str, range(4095)), 1)
    assert len(decode({"text_input": "a"} | keywords, TEXT).parameters) == 4095
    more = keywords | {"more": 1, "most": 1}
    error = refused({"text_input": "a"} | ({"parameters": more} if nested else more), TEXT)
    assert isinstance(error, InvalidArgument)
    assert error.message == f"the request has {4099 if nested else 4098} keywords, expected at most 4096"


def test_responses() -> None:
    """In alphabetical order; one element bare, others flat; parameters beside outputs."""
    outputs = [
        Tensor.from_numpy("z", np.array([[1, 2], [3, 4]], np.int64)),
        Tensor.from_numpy("b", np.array([[True]])),
        Tensor.from_numpy("e", np.zeros((0,), np.float32)),
        Tensor.from_numpy("n", np.array([math.nan], np.float32)),
        Tensor.from_numpy("i", np.array([math.inf, 1], np.float64)),
    ]
    response = InferenceResponse("m", 2, outputs, "", {"p": 0.5, "a": "x"})
    assert encode_generate_response(response) == (
        b'{"a":"x","b":true,"e":[],"i":[Infinity,1.0],"model_name":"m","model_version":"2","n":NaN,"p":0.5,'
        b'"z":[1,2,3,4]}'
    )


def test_responses_that_json_cannot_carry() -> None:
    text = InferenceResponse("m", 1, [Tensor("o", DataType.BYTES, (1,), encode_bytes_elements([b"\xff"]))])
    with pytest.raises(InvalidArgument, match="not valid UTF-8"):
        encode_generate_response(text)
    with pytest.raises(Internal):
        encode_generate_response(InferenceResponse("m", 1, [Tensor("o", DataType.FP32, (2,), b"\0\0\0\0")]))
