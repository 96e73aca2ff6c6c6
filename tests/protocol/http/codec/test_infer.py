"""The infer codec: bodies to requests, responses to bodies, and every way a body can be wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, PayloadTooLarge, ServerError
from protocol.http.codec.infer import (
    OutputEncoding,
    decode_infer_request,
    encode_infer_response,
    parse_header_length,
)
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.shared_memory.placement import MemoryReference
from tests.protocol.http.wire import arrays, infer_body, raw, read_outputs, same

LIMIT = 1 << 20
FP32 = {"name": "a", "datatype": "FP32", "shape": [2]}


def decode(body: Buffer, header_length: int | None, *, limit: int = LIMIT) -> tuple[InferenceRequest, OutputEncoding]:
    """A request without tensors elsewhere."""
    decoded = decode_infer_request(body, header_length, model_name="m", model_version=3, max_input_size=limit)
    assert decoded.placement is None
    return decoded.request, decoded.encoding


def decode_json(**members: Any) -> tuple[InferenceRequest, OutputEncoding]:
    return decode(json.dumps(members).encode(), None)


def refused(body: bytes, header_length: int | None, *, limit: int = LIMIT) -> ServerError:
    with pytest.raises(ServerError) as caught:
        decode(body, header_length, limit=limit)
    return caught.value


def refused_input(**members: Any) -> ServerError:
    """The error for one input, with no binary tail."""
    return refused(json.dumps({"inputs": [{**FP32, **members}]}).encode(), None)


Named = tuple[str, DataType, NDArray[Any], bool]


@st.composite
def named_arrays(draw: st.DrawFn) -> list[Named]:
    """Tensors of any datatype, each in JSON or in the binary tail."""
    tensors: list[Named] = []
    for index in range(draw(st.integers(0, 4))):
        binary = draw(st.booleans())
        datatype, array = draw(arrays(text=not binary))
        tensors.append((f"T{index}", datatype, array, binary))
    return tensors


@given(named_arrays())
def test_requests_come_back(tensors: list[Named]) -> None:
    """Any mix of datatypes, shapes and encodings is read as what was written."""
    body, size = infer_body(tensors, id="7")
    request, _ = decode(body, size)
    assert (request.model_name, request.model_version, request.id) == ("m", 3, "7")
    assert [t.name for t in request.inputs] == [t[0] for t in tensors]
    for tensor, (_, datatype, array, _) in zip(request.inputs, tensors, strict=True):
        assert tensor.datatype is datatype
        assert same(datatype, tensor.as_numpy(), array)


@given(named_arrays())
def test_responses_come_back(tensors: list[Named]) -> None:
    """The same mix as outputs, each encoded as the plan says."""
    outputs = [Tensor(name, datatype, array.shape, raw(datatype, array)) for name, datatype, array, _ in tensors]
    plan = OutputEncoding(binary={name: binary for name, _, _, binary in tensors})
    headers, parts = encode_infer_response(InferenceResponse("m", 2, outputs, "7"), plan)
    text, tail = bytes(parts[0]), b"".join(parts[1:])
    message = json.loads(text)
    assert (message["id"], message["model_name"], message["model_version"]) == ("7", "m", "2")
    found = read_outputs(text, tail)
    assert list(found) == [name for name, *_ in tensors]
    for name, datatype, array, _ in tensors:
        assert same(datatype, found[name], array)
    if tail:
        assert dict(headers) == {
            b"content-type": b"application/octet-stream",
            b"inference-header-content-length": str(len(text)).encode(),
        }
    else:
        assert dict(headers) == {b"content-type": b"application/json"}


@given(named_arrays(), st.data())
def test_a_cut_body_is_refused(tensors: list[Named], data: st.DataObject) -> None:
    """Whatever is missing at the end of the tail, or of the JSON, is a client's mistake."""
    body, size = infer_body(tensors)
    cut = data.draw(st.integers(0, len(body) - 1))
    error = refused(body[:cut], min(size, cut))
    assert isinstance(error, InvalidArgument)
    if cut >= size:
        assert error.message.endswith("additional bytes for model 'm'")


@given(named_arrays(), st.binary(min_size=1, max_size=9))
def test_bytes_after_the_tail_are_refused(tensors: list[Named], more: bytes) -> None:
    body, size = infer_body(tensors)
    error = refused(body + more, size)
    assert error.message == (
        f"unexpected additional input data for model 'm': {len(more)} bytes after the last binary input"
    )


def test_binary_tensors_are_views_of_the_body() -> None:
    """No copy of the tail is made, and nobody can write to it through a tensor."""
    array = np.arange(4, dtype=np.int64)
    text, size = infer_body([("a", DataType.INT64, array, True)])
    body = bytearray(text)
    request, _ = decode(body, size)
    data = request.inputs[0].data
    assert isinstance(data, memoryview)
    assert data.readonly
    body[-8:] = (99).to_bytes(8, "little")
    assert request.inputs[0].as_numpy().tolist() == [0, 1, 2, 99]


def test_the_worked_example_of_the_reference() -> None:
    """Two forms of one BYTES tensor, byte for byte."""
    text = b'{"inputs":[{"name":"B","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":11}}]}'
    request, _ = decode(text + bytes.fromhex("02000000 6162 01000000 63"), len(text))
    assert request.inputs[0].as_numpy().tolist() == [b"ab", b"c"]
    response = InferenceResponse("m", 1, request.inputs)
    _, parts = encode_infer_response(response, OutputEncoding())
    assert parts == [
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"B","datatype":"BYTES","shape":[2],"data":["ab","c"]}]}'
    ]
    headers, parts = encode_infer_response(response, OutputEncoding(default_binary=True))
    text = (
        b'{"model_name":"m","model_version":"1","outputs":'
        b'[{"name":"B","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":11}}]}'
    )
    assert [bytes(part) for part in parts] == [text, bytes.fromhex("02000000 6162 01000000 63")]
    assert dict(headers)[b"inference-header-content-length"] == str(len(text)).encode()


def test_outputs_and_their_encodings() -> None:
    """`binary_data` holds for its output; a named output without it is JSON; the default holds where none is named."""
    request, plan = decode_json(
        inputs=[],
        outputs=[{"name": "x", "parameters": {"binary_data": True}}, {"name": "y"}],
        parameters={"binary_data_output": True},
    )
    assert request.requested_outputs == ("x", "y")
    assert (plan.is_binary("y"), plan.is_binary("z")) == (False, False)
    for default in (True, False):
        request, plan = decode_json(inputs=[], parameters={"binary_data_output": default})
        assert request.requested_outputs == ()
        assert plan.is_binary("x") is default
    _, plan = decode_json(inputs=[], outputs=[{"name": "x", "parameters": {"binary_data": True}}])
    assert plan.is_binary("x")


def test_requests_of_one_form() -> None:
    """What differs in its numbers alone is alike; what differs in anything that a configuration judges is not."""

    def template(
        shape: list[int], data: list[Any], *, name: str = "A", datatype: str = "INT32", **members: Any
    ) -> object:
        tensor = {"name": name, "datatype": datatype, "shape": shape, "data": data}
        return decode_json(inputs=[tensor], **members)[0].template

    known = template([1, 2], [1, 2])
    assert known is not None
    assert known == template([1, 2], [3, 4]) == template([1, 2], [[5, 6]], id="x")
    others = [
        template([2, 1], [1, 2]),
        template([1, 2], [1, 2], name="B"),
        template([1, 2], [1, 2], datatype="UINT32"),
        template([1, 2], [1, 2], outputs=[{"name": "OUT"}]),
        template([1, 2], ["a", "b"], datatype="BYTES"),
    ]
    assert len({known, *others}) == 6


def test_duplicates_are_left_for_the_core_to_refuse() -> None:
    """The codec hides none of them."""
    outputs = [{"name": "y"}, {"name": "x"}, {"name": "y", "parameters": {"binary_data": True}}]
    request, _ = decode_json(inputs=[], outputs=outputs)
    assert request.requested_outputs == ("y", "x", "y")
    request, _ = decode_json(inputs=[{**FP32, "data": [1, 2]}, {**FP32, "data": [3, 4]}])
    assert [t.as_numpy().tolist() for t in request.inputs] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("value", "size", "expected"),
    [(None, 10, None), (b"10", 10, 10), (b" 3 ", 10, 3), (b"0000000003", 3, 3), (b"0", 10, 0), (b"-0", 0, 0)],
)
def test_header_lengths(value: bytes | None, size: int, expected: int | None) -> None:
    assert parse_header_length(value, size) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "Unable to parse Inference-Header-Content-Length, got: "),
        (b"x", "Unable to parse Inference-Header-Content-Length, got: x"),
        (b"1.5", "Unable to parse Inference-Header-Content-Length, got: 1.5"),
        (b"--1", "Unable to parse Inference-Header-Content-Length, got: --1"),
        (b"\xb2", "Unable to parse Inference-Header-Content-Length, got: \xb2"),
        (b"-1", "inference header size should be in range (0, 10), got: -1"),
        (b"11", "inference header size should be in range (0, 10), got: 11"),
        (
            b"2147483648",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            "got: 2147483648",
        ),
        (b"9" * 5000, "Unable to parse Inference-Header-Content-Length, value is out of range"),
    ],
)
def test_wrong_header_lengths(value: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_header_length(value, 10)
    assert caught.value.message.startswith(message)


def test_an_empty_body() -> None:
    assert refused(b"", None).message == "failed to parse the request JSON buffer: The document is empty at 0"


def test_json_over_the_limit() -> None:
    """The binary tail does not count."""
    body, size = infer_body([("a", DataType.INT8, np.zeros(500, np.int8), True)])
    decode(body, size, limit=size)
    error = refused(body, size, limit=size - 1)
    assert isinstance(error, PayloadTooLarge)
    assert error.message == (
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {size - 1} bytes. "
        f"Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([-1, 2], "invalid shape for input 'a': shape [-1,2] contains one or more invalid dimensions"),
        ([2**63], "invalid shape for input 'a': shape [9223372036854775808] contains one or more invalid dimensions"),
        (
            [2**62, 2],
            "invalid shape for input 'a': shape [4611686018427387904,2] causes total element count to exceed maximum "
            "size of 9223372036854775807",
        ),
        (
            [2**61],
            "byte size overflow for input 'a': element count (2305843009213693952) * data type size (4) exceeds "
            "maximum allowed size (9223372036854775807)",
        ),
        (
            [2**40],
            "JSON input 'a' has a byte_size (4398046511104 bytes) that exceeds the maximum allowed value of "
            "1048576 bytes. Use --http-max-input-size to increase the limit.",
        ),
    ],
)
def test_wrong_shapes(shape: list[int], message: str) -> None:
    assert refused_input(shape=shape, data=[1, 2]).message == message


def test_a_hostile_shape_is_refused_at_once() -> None:
    """The product of its dimensions would have millions of digits."""
    error = refused_input(shape=[2**62] * 40_000, data=[])
    assert error.message == "invalid shape for input 'a': expected at most 64 dimensions, got 40000"
    error = refused_input(shape=[2**62] * 64, data=[])
    assert error.message.endswith("causes total element count to exceed maximum size of 9223372036854775807")
    assert len(error.message) < 2000


def test_zero_elements_beside_huge_dimensions() -> None:
    request, _ = decode_json(inputs=[{**FP32, "shape": [2**62, 0, 2**62], "data": []}])
    assert request.inputs[0].element_count == 0


@pytest.mark.parametrize("datatype", ["FP8", "fp32", "", "TYPE_FP32", "INVALID"])
def test_unknown_datatypes(datatype: str) -> None:
    message = refused_input(datatype=datatype, data=[1, 2]).message
    assert message.startswith(f"invalid datatype for input a: got '{datatype}', expected one of BOOL, UINT8")


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({}, "But no field is set for input 'a'"),
        ({"parameters": {"custom": 1}}, "But no field is set for input 'a'"),
        (
            {"data": [1, 2], "parameters": {"binary_data_size": 8, "shared_memory_region": "r"}},
            "But set 'data' 'binary_data_size' 'shared_memory_region' for input 'a'",
        ),
        (
            {"parameters": {"binary_data_size": 8, "shared_memory_region": "r"}},
            "But set 'binary_data_size' 'shared_memory_region' for input 'a'",
        ),
    ],
)
def test_not_exactly_one_source_of_data(members: dict[str, Any], found: str) -> None:
    assert refused_input(**members).message == (
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. {found}"
    )


def test_binary_data_without_a_header_length() -> None:
    """Only a size of 0 makes sense then."""
    assert refused_input(parameters={"binary_data_size": 8}).message == (
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing "
        "inputs in binary data format"
    )
    request, _ = decode_json(inputs=[{**FP32, "shape": [0], "parameters": {"binary_data_size": 0}}])
    assert request.inputs[0].byte_size == 0


def test_a_missing_tail_is_counted() -> None:
    """The sentence names the input, the missing bytes and the model."""
    body, size = infer_body([("a", DataType.INT8, np.zeros(6, np.int8), True), ("b", DataType.FP64, np.zeros(2), True)])
    assert (
        refused(body[:-1], size).message == "unexpected size for input 'b', expecting 1 additional bytes for model 'm'"
    )
    assert refused(body[: size + 2], size).message == (
        "unexpected size for input 'a', expecting 4 additional bytes for model 'm'"
    )


def test_tensors_in_shared_memory() -> None:
    """Their references are found by position and by name; offset and size are 0 where they are left out."""
    place = {"shared_memory_region": "r", "shared_memory_offset": 16, "shared_memory_byte_size": 8}
    decoded = decode_infer_request(
        json.dumps(
            {
                "inputs": [{**FP32, "data": [1, 2]}, {**FP32, "name": "b", "parameters": place}],
                "outputs": [{"name": "x", "parameters": {"shared_memory_region": "s"}}, {"name": "y"}],
            }
        ).encode(),
        None,
        model_name="m",
        model_version=3,
        max_input_size=LIMIT,
    )
    assert decoded.placement is not None
    assert decoded.placement.inputs == {1: MemoryReference("r", 16, 8)}
    assert decoded.placement.outputs == {"x": MemoryReference("s", 0, 0)}
    assert decoded.placement.classes == {}
    assert decoded.request.inputs[1].data == b""
    outputs = [Tensor("x", DataType.FP32, (2,), b""), Tensor("y", DataType.FP32, (1,), bytes(4))]
    _, parts = encode_infer_response(InferenceResponse("m", 1, outputs), decoded.encoding)
    assert json.loads(bytes(parts[0]))["outputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [2]},
        {"name": "y", "datatype": "FP32", "shape": [1], "data": [0.0]},
    ]


def test_outputs_wanted_as_classes() -> None:
    """In JSON or in binary; 0 classes mean the values."""
    outputs = [
        {"name": "x", "parameters": {"classification": 3, "binary_data": True}},
        {"name": "y", "parameters": {"classification": 0}},
    ]
    body = json.dumps({"inputs": [], "outputs": outputs}).encode()
    decoded = decode_infer_request(body, None, model_name="m", model_version=3, max_input_size=LIMIT)
    assert decoded.placement is not None
    assert decoded.placement.classes == {"x": 3}
    assert (decoded.encoding.is_binary("x"), decoded.encoding.is_binary("y")) == (True, False)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"shared_memory_region": "r", "classification": 1},
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            {"shared_memory_region": "r", "binary_data": True},
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
        ({"classification": -1}, "Unable to parse 'classification': attempt to access JSON non-unsigned-integer"),
        ({"classification": True}, "Unable to parse 'classification': attempt to access JSON non-unsigned-integer"),
        ({"shared_memory_region": 5}, "Unable to parse 'shared_memory_region': attempt to access JSON non-string"),
        (
            {"shared_memory_region": "r", "shared_memory_offset": -1},
            "Unable to parse 'shared_memory_offset': attempt to access JSON non-unsigned-integer",
        ),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": "8"},
            "Unable to parse 'shared_memory_byte_size': attempt to access JSON non-unsigned-integer",
        ),
    ],
)
def test_wrong_output_parameters(parameters: dict[str, Any], text: str) -> None:
    body = json.dumps({"inputs": [], "outputs": [{"name": "o", "parameters": parameters}]}).encode()
    assert refused(body, None).message.startswith(text)


def test_an_output_in_shared_memory_may_say_that_it_is_not_binary() -> None:
    outputs = [{"name": "o", "parameters": {"shared_memory_region": "r", "binary_data": False}}]
    body = json.dumps({"inputs": [], "outputs": outputs}).encode()
    decoded = decode_infer_request(body, None, model_name="m", model_version=3, max_input_size=LIMIT)
    assert decoded.placement is not None
    assert set(decoded.placement.outputs) == {"o"}


def test_half_floats_pass_in_json() -> None:
    """Triton refuses these; here they round-trip."""
    for datatype in ("FP16", "BF16"):
        request, _ = decode_json(inputs=[{"name": "a", "datatype": datatype, "shape": [2], "data": [0.5, -2]}])
        _, parts = encode_infer_response(InferenceResponse("m", 1, request.inputs), OutputEncoding())
        assert json.loads(bytes(parts[0]))["outputs"][0]["data"] == [0.5, -2.0]


def test_nan_and_infinity_pass_in_json() -> None:
    body = b'{"inputs":[{"name":"a","datatype":"FP64","shape":[3],"data":[NaN,Infinity,-Infinity]}]}'
    request, _ = decode(body, None)
    _, parts = encode_infer_response(InferenceResponse("m", 1, request.inputs), OutputEncoding())
    assert b'"data":[NaN,Infinity,-Infinity]' in bytes(parts[0])


def test_response_members_that_are_empty_are_left_out() -> None:
    """`id` and `parameters` appear only where there is something in them; `outputs` always."""
    _, parts = encode_infer_response(InferenceResponse("m", 1, []), OutputEncoding())
    assert parts == [b'{"model_name":"m","model_version":"1","outputs":[]}']
    response = InferenceResponse("m", 1, [], "", {"a": True, "b": 1, "c": "x", "d": 0.5, "e": math.nan})
    _, parts = encode_infer_response(response, OutputEncoding())
    assert parts == [
        b'{"model_name":"m","model_version":"1","parameters":{"a":true,"b":1,"c":"x","d":0.5,"e":NaN},"outputs":[]}'
    ]


def test_an_empty_binary_output_has_no_tail() -> None:
    """The answer is then plain JSON, with a size of 0 in the place of data."""
    response = InferenceResponse("m", 1, [Tensor("o", DataType.FP32, (0,), b"")])
    headers, parts = encode_infer_response(response, OutputEncoding(default_binary=True))
    assert dict(headers) == {b"content-type": b"application/json"}
    assert json.loads(bytes(parts[0]))["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_outputs_that_cannot_be_written_as_json() -> None:
    text = InferenceResponse("m", 1, [Tensor("o", DataType.BYTES, (1,), encode_bytes_elements([b"\xff"]))])
    with pytest.raises(InvalidArgument, match="binary data format"):
        encode_infer_response(text, OutputEncoding())
    assert encode_infer_response(text, OutputEncoding(default_binary=True))
    short = InferenceResponse("m", 1, [Tensor("o", DataType.FP32, (2,), b"\0\0\0\0")])
    with pytest.raises(Internal):
        encode_infer_response(short, OutputEncoding())


@given(st.binary(max_size=60), st.integers(0, 60))
def test_garbage_is_a_clients_mistake(body: bytes, header_length: int) -> None:
    """Nothing but the error tree escapes, and never as our own fault."""
    error = refused(body, min(header_length, len(body)))
    assert not isinstance(error, Internal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"inputs": [{**FP32, "data": [1, 2]}] * 4097}, "inputs"),
        ({"inputs": [], "outputs": [{"name": "o"}] * 4097}, "requested outputs"),
        ({"inputs": [], "parameters": {str(number): 1 for number in range(4097)}}, "parameters"),
    ],
)
def test_too_many_members(members: dict[str, Any], what: str) -> None:
    assert refused(json.dumps(members).encode(), None).message == f"the request has 4097 {what}, expected at most 4096"
