"""ModelInferRequest and ModelInferResponse, against Triton's own message classes."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Internal, InvalidArgument
from protocol.grpc.codec import infer as infer_codec
from protocol.grpc.codec.infer import (
    decode_request,
    decode_version,
    encode_response,
    encode_stream_error,
    encode_stream_response,
    parse_request,
)
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.shared_memory.placement import MemoryReference, Placement

FIXED_SIZE = [datatype for datatype in BY_PROTOCOL_NAME.values() if datatype.itemsize]


def decode(request: Any) -> InferenceRequest:
    return decode_request(parse_request(request.SerializeToString())).request


def request_of(*inputs: tuple[str, str, list[int]], raw: list[bytes] | None = None, **fields: Any) -> Any:
    request = service_pb2.ModelInferRequest(**{"model_name": "m", **fields})
    for name, datatype, shape in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.extend(raw or [])
    return request


# Requests.


def test_a_whole_request() -> None:
    request = request_of(("x", "INT32", [1, 2]), ("y", "BOOL", [3]), raw=[bytes(8), b"\1\0\1"])
    request.id = "7"
    request.model_version = "3"
    request.outputs.add(name="a")
    request.outputs.add(name="b")
    request.parameters["mine"].string_param = "value"
    request.parameters["priority"].uint64_param = 2
    decoded = decode(request)
    assert (decoded.model_name, decoded.model_version, decoded.id) == ("m", 3, "7")
    assert decoded.requested_outputs == ("a", "b")
    assert (decoded.parameters, decoded.priority) == ({"mine": "value"}, 2)
    found = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in decoded.inputs]
    assert found == [("x", DataType.INT32, (1, 2), bytes(8)), ("y", DataType.BOOL, (3,), b"\1\0\1")]


def test_an_empty_request() -> None:
    """Whether inputs are missing is for the core to say."""
    decoded = decode(service_pb2.ModelInferRequest())
    assert (decoded.model_name, decoded.model_version, decoded.inputs) == ("", -1, [])


@pytest.mark.parametrize("datatype", FIXED_SIZE)
def test_raw_contents_of_each_datatype(datatype: DataType) -> None:
    raw = bytes(range(6 * datatype.itemsize))
    (tensor,) = decode(request_of(("x", datatype.name, [2, 3]), raw=[raw])).inputs
    assert (tensor.datatype, tensor.shape, bytes(tensor.data)) == (datatype, (2, 3), raw)
    if datatype is not DataType.BOOL:
        assert tensor.as_numpy().tobytes() == raw


@pytest.mark.slow
@given(st.lists(st.binary(min_size=0, max_size=40_000).filter(lambda raw: not len(raw) % 4), min_size=1, max_size=4))
def test_large_and_small_raw_contents_come_out_alike(raw: list[bytes]) -> None:
    """Whether they are parsed or cut out of the bytes."""
    inputs = [(f"x{index}", "FP32", [len(data) // 4]) for index, data in enumerate(raw)]
    decoded = decode(request_of(*inputs, raw=raw, id="an id"))
    assert [bytes(tensor.data) for tensor in decoded.inputs] == raw
    assert [tensor.name for tensor in decoded.inputs] == [name for name, _, _ in inputs]
    assert decoded.id == "an id"


def test_large_raw_contents_are_views_of_the_received_bytes() -> None:
    data = request_of(("x", "UINT8", [100_000]), raw=[bytes(100_000)]).SerializeToString()
    (tensor,) = decode_request(parse_request(data)).request.inputs
    assert isinstance(tensor.data, memoryview)
    assert tensor.data.obj is data


def test_typed_contents() -> None:
    request = request_of(("x", "FP32", [2]), ("s", "BYTES", [1]))
    request.inputs[0].contents.fp32_contents.extend([1.5, -1.5])
    request.inputs[1].contents.bytes_contents.append(b"ab")
    floats, text = decode(request).inputs
    assert floats.as_numpy().tolist() == [1.5, -1.5]
    assert text.as_numpy().tolist() == [b"ab"]


@pytest.mark.parametrize(("name", "shape"), [("FP32", [0]), ("FP32", [3, 0]), ("BYTES", [0])])
def test_empty_tensors(name: str, shape: list[int]) -> None:
    """Raw, and as typed contents without elements."""
    assert bytes(decode(request_of(("x", name, shape), raw=[b""])).inputs[0].data) == b""
    request = request_of(("x", name, shape))
    request.inputs[0].contents.SetInParent()
    assert bytes(decode(request).inputs[0].data) == b""


def test_a_scalar_has_no_dimensions() -> None:
    (tensor,) = decode(request_of(("x", "INT64", []), raw=[bytes(8)])).inputs
    assert tensor.shape == ()


def test_surplus_raw_entries_are_ignored() -> None:
    assert len(decode(request_of(("x", "BOOL", [1]), raw=[b"\1", b"more"])).inputs) == 1


VERSIONS = [("", -1), ("1", 1), ("0", 0), ("+7", 7), ("007", 7), (str(2**63 - 1), 2**63 - 1)]


@pytest.mark.parametrize(("text", "version"), VERSIONS)
def test_versions(text: str, version: int) -> None:
    assert decode_version(text) == version


NOT_INTEGRAL = "failed to get model version from specified version string '{}' (details: {}), version should be"
BAD_VERSIONS = [
    ("latest", NOT_INTEGRAL.format("latest", "not an integer")),
    ("1.0", NOT_INTEGRAL.format("1.0", "not an integer")),
    (" 1", NOT_INTEGRAL.format(" 1", "not an integer")),
    ("1_0", NOT_INTEGRAL.format("1_0", "not an integer")),
    ("\u0661", NOT_INTEGRAL.format("\u0661", "not an integer")),
    ("9" * 5000, NOT_INTEGRAL.format("9" * 100, "not an integer")),
    (str(2**63), NOT_INTEGRAL.format(2**63, "out of range")),
    ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
]


@pytest.mark.parametrize(("text", "message"), BAD_VERSIONS)
def test_what_is_no_version(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_version(text)
    assert caught.value.message.startswith(message)


MAX = 2**63 - 1
SHAPES: list[tuple[str, list[int], str]] = [
    ("FP32", [-1], "invalid shape for input 'x': shape [-1] contains one or more invalid dimensions"),
    ("BYTES", [2, -(2**63)], f"invalid shape for input 'x': shape [2,{-(2**63)}] contains one or more invalid"),
    (
        "BOOL",
        [2**32, 2**31],
        f"invalid shape for input 'x': shape [{2**32},{2**31}] causes total element count to exceed maximum size of "
        f"{MAX}",
    ),
    ("INT8", [MAX, MAX], f"shape [{MAX},{MAX}] causes total element count to exceed"),
    (
        "FP32",
        [MAX],
        f"byte size overflow for input 'x': element count ({MAX}) * data type size (4) exceeds maximum allowed size",
    ),
    ("BYTES", [MAX], "byte size overflow for input 'x'"),
    ("FP32", [1] * 65, "invalid shape for input 'x': expected at most 64 dimensions, got 65"),
    (
        "FP32",
        [3],
        "[request id: <id_unknown>] input byte size mismatch for input 'x' for model 'm'. Expected 12, got 8",
    ),
]


@pytest.mark.parametrize(("datatype", "shape", "message"), SHAPES)
def test_shapes_that_cannot_be(datatype: str, shape: list[int], message: str) -> None:
    """Found before anything is allocated, and never a defect."""
    with pytest.raises(InvalidArgument) as caught:
        decode(request_of(("x", datatype, shape), raw=[bytes(8)]))
    assert message in caught.value.message


@pytest.mark.parametrize("datatype", ["", "fp32", "FP99", "INVALID", "TYPE_FP32", "STRING"])
def test_unknown_datatypes(datatype: str) -> None:
    with pytest.raises(InvalidArgument, match=f"for input 'x' for model 'm': expected one of BOOL, .*'{datatype}'$"):
        decode(request_of(("x", datatype, [1]), raw=[b"\0"]))


def test_a_byte_size_mismatch_names_the_request() -> None:
    with pytest.raises(InvalidArgument, match=r"\[request id: 42\] input byte size mismatch .* Expected 4, got 3"):
        decode(request_of(("x", "FP32", [1]), raw=[b"abc"], id="42"))


def test_typed_contents_of_the_wrong_count() -> None:
    request = request_of(("x", "FP32", [3]))
    request.inputs[0].contents.fp32_contents.extend([1.0, 2.0])
    with pytest.raises(InvalidArgument, match="Expected 12, got 8"):
        decode(request)


def test_no_data() -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(request_of(("x", "FP32", [1]), ("y", "FP32", [1]), raw=[bytes(4)]))
    assert caught.value.message == "unable to find data for input tensor 'y' for model 'm' in request."


def test_typed_contents_beside_raw_ones() -> None:
    request = request_of(("x", "FP32", [1]), raw=[bytes(4)])
    request.inputs[0].contents.fp32_contents.append(1.0)
    with pytest.raises(InvalidArgument) as caught:
        decode(request)
    expected = "contents field must not be specified when using raw_input_contents for 'x' for model 'm'"
    assert caught.value.message == expected


def in_region(tensor: Any, size: int, offset: int | None = None) -> None:
    tensor.parameters["shared_memory_region"].string_param = "region"
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    if offset is not None:
        tensor.parameters["shared_memory_offset"].int64_param = offset


def test_inputs_in_shared_memory_take_no_raw_contents() -> None:
    request = request_of(("a", "FP32", [1]), ("b", "FP32", [2]), ("c", "FP32", [1]), raw=[b"aaaa", b"cccc"])
    in_region(request.inputs[1], 8, offset=16)
    decoded = decode_request(parse_request(request.SerializeToString()))
    assert [bytes(tensor.data) for tensor in decoded.request.inputs] == [b"aaaa", b"", b"cccc"]
    assert decoded.placement == Placement(inputs={1: MemoryReference("region", 16, 8)})


def test_where_outputs_go() -> None:
    request = request_of()
    in_region(request.outputs.add(name="a"), 8)
    request.outputs.add(name="b").parameters["classification"].int64_param = 3
    request.outputs.add(name="c").parameters["binary_data"].bool_param = True
    decoded = decode_request(parse_request(request.SerializeToString()))
    assert decoded.placement == Placement(outputs={"a": MemoryReference("region", 0, 8)}, classes={"b": 3})
    assert decoded.request.requested_outputs == ("a", "b", "c")


def test_a_request_with_all_its_tensors_has_no_placement() -> None:
    request = request_of(("x", "FP32", [1]), raw=[bytes(4)])
    request.outputs.add(name="y")
    assert decode_request(parse_request(request.SerializeToString())).placement is None


def test_a_region_with_contents() -> None:
    request = request_of(("x", "FP32", [1]))
    in_region(request.inputs[0], 4)
    request.inputs[0].contents.fp32_contents.append(1.0)
    with pytest.raises(InvalidArgument) as caught:
        decode(request)
    expected = "unexpected 'content' provided when using shared memory for input tensor 'x' for model 'm'"
    assert caught.value.message == expected


@pytest.mark.parametrize("size", [0, 3, 5, -4, 2**63 - 1])
def test_a_part_of_a_region_that_is_not_the_tensors_size(size: int) -> None:
    request = request_of(("x", "FP32", [1]))
    in_region(request.inputs[0], size)
    with pytest.raises(InvalidArgument, match=f"Expected 4, got {size}"):
        decode(request)


def test_wrong_parameters_of_request_and_output_are_found() -> None:
    request = request_of()
    request.parameters["priority"].string_param = "high"
    with pytest.raises(InvalidArgument, match="'priority'"):
        decode(request)
    request = request_of()
    request.outputs.add(name="y").parameters["classification"].int64_param = -2
    with pytest.raises(InvalidArgument, match="'classification' parameter, expected >= 0"):
        decode(request)


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_more_tensors_than_make_sense(field: str) -> None:
    request = request_of()
    for _ in range(infer_codec.MAX_TENSORS + 1):
        getattr(request, field).add(name="x")
    with pytest.raises(InvalidArgument, match=f"the request has {infer_codec.MAX_TENSORS + 1} .*, expected at most"):
        decode(request)


GOOD = request_of(("x", "INT32", [1]), raw=[bytes(4)], id="7").SerializeToString()


@given(st.one_of(st.binary(max_size=200), st.integers(0, len(GOOD)).map(lambda end: GOOD[:end])))
def test_any_bytes_are_a_request_or_an_invalid_argument(data: bytes) -> None:
    """Truncated requests too: never another exception."""
    with contextlib.suppress(InvalidArgument):
        decode_request(parse_request(data))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_a_request_or_an_invalid_argument(position: int, bits: int) -> None:
    """In a request large enough to be cut."""
    raw = bytes(20_000)
    data = bytearray(request_of(("x", "INT32", [5000]), raw=[raw], id="7").SerializeToString())
    data[position % 60] ^= bits
    with contextlib.suppress(InvalidArgument):
        decode_request(parse_request(bytes(data)))


@pytest.mark.parametrize("size", [0, 100_000])
def test_broken_protobuf(size: int) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a valid inference\.ModelInferRequest message"):
        parse_request(bytes(size) + b"\x0a\x05ab")


# Responses.


def response_of(*outputs: Tensor, **fields: Any) -> InferenceResponse:
    return InferenceResponse("m", 3, list(outputs), **fields)


def test_a_whole_response() -> None:
    tensors = [
        Tensor.from_numpy("x", np.arange(6, dtype=np.int16).reshape(2, 3)),
        Tensor.from_numpy("s", np.array([b"ab", b""], dtype=np.object_)),
        Tensor("e", DataType.FP32, (0, 2), memoryview(b"")),
    ]
    parameters = {"bool": True, "int64": -1, "uint64": 2**64 - 1, "double": 0.5, "string": "text"}
    encoded = b"".join(encode_response(response_of(*tensors, id="7", parameters=parameters)))
    message = service_pb2.ModelInferResponse.FromString(encoded)
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "7")
    outputs = [(output.name, output.datatype, list(output.shape)) for output in message.outputs]
    assert outputs == [("x", "INT16", [2, 3]), ("s", "BYTES", [2]), ("e", "FP32", [0, 2])]
    assert list(message.raw_output_contents) == [bytes(tensor.data) for tensor in tensors]
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in message.parameters.items()}
    assert kinds == {key: f"{key}_param" for key in parameters}
    assert {key: getattr(message.parameters[key], kind) for key, kind in kinds.items()} == parameters


@pytest.mark.slow
@given(st.lists(st.binary(max_size=300), max_size=4), st.text(max_size=10))
def test_responses_come_out_as_they_went_in(raw: list[bytes], request_id: str) -> None:
    tensors = [Tensor(f"y{index}", DataType.UINT8, (len(data),), data) for index, data in enumerate(raw)]
    response = response_of(*tensors, id=request_id)
    message = service_pb2.ModelInferResponse.FromString(b"".join(encode_response(response)))
    assert (list(message.raw_output_contents), message.id) == (raw, request_id)
    stream = service_pb2.ModelStreamInferResponse.FromString(b"".join(encode_stream_response(response)))
    assert stream.infer_response.parameters["triton_final_response"].bool_param is True
    del stream.infer_response.parameters["triton_final_response"]
    assert stream.infer_response == message
    assert stream.error_message == ""
    assert "triton_final_response" not in response.parameters


def test_a_stream_error_keeps_the_requests_names() -> None:
    wire = parse_request(request_of(id="7", model_version="2").SerializeToString())
    message = service_pb2.ModelStreamInferResponse.FromString(encode_stream_error("no", wire.names, "mine"))
    inner = message.infer_response
    assert (message.error_message, inner.id, inner.model_name, inner.model_version) == ("no", "7", "m", "2")
    assert inner.parameters["triton_final_response"].bool_param is True
    assert inner.parameters["request_id"].string_param == "mine"


def test_a_stream_error_without_a_request() -> None:
    message = service_pb2.ModelStreamInferResponse.FromString(encode_stream_error("no \ud800", None, "made"))
    assert (message.error_message, message.infer_response.id) == ("no ?", "")
    assert message.infer_response.parameters["request_id"].string_param == "made"


def test_a_response_over_grpcs_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_codec, "MAX_RESPONSE_SIZE", 100_000)
    with pytest.raises(
        InvalidArgument, match=r"^Response has byte size 1000\d\d which exceeds gRPC's byte size limit 100000\.$"
    ):
        encode_response(response_of(Tensor("x", DataType.UINT8, (100_000,), bytes(100_000))))


def test_a_response_parameter_that_grpc_cannot_carry() -> None:
    with pytest.raises(Internal, match=f"response parameter 'big' is {2**64}"):
        encode_response(response_of(parameters={"big": 2**64}))
