"""Codec of inference messages: ModelInferRequest to InferenceRequest, InferenceResponse to ModelInferResponse.

Pure functions over bytes. What can be known without the model's configuration is checked here; the core checks the
rest. Large raw contents stay views of the received bytes, and outputs views of the backend's memory. Source: KServe v2
over gRPC with Triton's extensions; the error texts are Triton's where it has one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Internal, InvalidArgument, shown_name
from protocol.grpc.codec.contents import encode_contents, unexpected_contents
from protocol.grpc.codec.messages import parse
from protocol.grpc.codec.packed_contents import Cut, PackedContents, cut_contents
from protocol.grpc.codec.parameters import class_count, decode_request_parameters, memory_reference
from protocol.grpc.codec.wire import Field, field_start, top_level_fields
from protocol.messages import (
    LATEST_VERSION,
    Buffer,
    InferenceRequest,
    InferenceResponse,
    LaidOutTensor,
    ParameterValue,
    Tensor,
    flat,
)
from protocol.proto import message_class
from protocol.shapes import MAX_INT64, expected_byte_size
from protocol.shared_memory.placement import MemoryReference, Placement

MAX_RESPONSE_SIZE = 2**31 - 1
# A bound on what a request makes the server loop over in Python.
MAX_TENSORS = 4096

# On every response of a stream: whether it is the last one of its request.
FINAL = "triton_final_response"
# On an error in a stream: the id by which the server knows its request.
REQUEST_ID = "request_id"

# Cutting raw contents out of the bytes costs more than copying them where they are small.
COPY_UP_TO = 16384
RAW_INPUT_CONTENTS = 7  # field numbers
_RAW_OUTPUT_CONTENTS = 6
_RESPONSE_ID = 3
_INFER_RESPONSE = 2

_VERSION = re.compile(r"[+-]?[0-9]{1,20}")


class RequestNames(NamedTuple):
    """What is told to a client about its request; `model_version` as the client wrote it."""

    model_name: str
    model_version: str
    id: str


_NONE_PACKED: Mapping[int, PackedContents] = MappingProxyType({})


class WireRequest(NamedTuple):
    """A parsed ModelInferRequest; `message` is the protobuf message, `raw` its `raw_input_contents`, `packed` what was
    not parsed of the contents of inputs, by their place."""

    message: Any
    raw: Sequence[Buffer]
    packed: Mapping[int, PackedContents] = _NONE_PACKED

    @property
    def model_name(self) -> str:
        name: str = self.message.model_name
        return name

    @property
    def names(self) -> RequestNames:
        message = self.message
        return RequestNames(message.model_name, message.model_version, message.id)


class DecodedRequest(msgspec.Struct, eq=False):
    """`placement` is None where all tensors are in the messages; their inputs have no data yet where it names them.
    `wants_empty_final`: a stream's client wants to be told of a final flag that comes without a response."""

    request: InferenceRequest
    placement: Placement | None
    wants_empty_final: bool


def parse_request(data: bytes | memoryview) -> WireRequest:
    """Parse a serialized ModelInferRequest; large raw contents become views of `data`.

    Raises:
        InvalidArgument: it is not one.
    """
    message_type = message_class("inference.ModelInferRequest")
    if len(data) > COPY_UP_TO:
        view = memoryview(data)
        fields = top_level_fields(view)
        if fields is not None:
            return joined_request(view, fields, cut_contents(view, fields))
    message: Any = parse(message_type, data)
    return WireRequest(message, message.raw_input_contents)


def joined_request(data: memoryview, fields: Sequence[Field], cut: Cut) -> WireRequest:
    """The request of a message whose contents are cut, which is parsed without its bulky fields. Raises as
    `parse_request`."""
    instead, packed = cut
    raw: list[memoryview] = []
    rest: list[memoryview | bytes] = []
    kept = 0
    for place, field in enumerate(fields):
        if field.number == RAW_INPUT_CONTENTS and field.is_delimited:
            raw.append(data[field.value : field.end])
        elif place not in instead:
            continue
        rest += (data[kept : field.start], *instead.get(place, ()))
        kept = field.end
    rest.append(data[kept:])
    return WireRequest(parse(message_class("inference.ModelInferRequest"), b"".join(rest)), raw, packed)


def decode_request(wire: WireRequest) -> DecodedRequest:
    """The request in the server's own vocabulary.

    Raises:
        InvalidArgument: it is wrong whatever the model.
    """
    message = wire.message
    _check_count(message.inputs, "inputs")
    _check_count(message.outputs, "requested outputs")
    _check_count(message.parameters, "parameters")
    inputs, input_references = _decode_inputs(wire)
    request = InferenceRequest(message.model_name, inputs, decode_version(message.model_version), message.id)
    output_references: dict[str, MemoryReference] = {}
    classes: dict[str, int] = {}
    for output in message.outputs:
        if output.parameters:
            if (count := class_count(output)) is not None:
                classes[output.name] = count
            elif (reference := memory_reference(output)) is not None:
                output_references[output.name] = reference
    request.requested_outputs = tuple([output.name for output in message.outputs])
    wants_empty_final = False
    if message.parameters:
        wants_empty_final = decode_request_parameters(message.parameters, request)
    placement: Placement | None = None
    if input_references or output_references or classes:
        placement = Placement(input_references, output_references, classes)
    return DecodedRequest(request, placement, wants_empty_final)


def _check_count(items: Any, what: str) -> None:
    if len(items) > MAX_TENSORS:
        raise InvalidArgument(f"the request has {len(items)} {what}, expected at most {MAX_TENSORS}")


def decode_version(version: str) -> int:
    """The number of a version string; empty is the latest.

    Raises:
        InvalidArgument: it is no number, or negative.
    """
    if not version:
        return LATEST_VERSION
    number = int(version) if _VERSION.fullmatch(version) else None
    if number is None or abs(number) > MAX_INT64:
        details = "not an integer" if number is None else "out of range"
        raise InvalidArgument(
            f"failed to get model version from specified version string '{version[:100]}' (details: {details}), "
            "version should be an integral value > 0"
        )
    if number < 0:
        raise InvalidArgument(f"invalid model version specified '{version}' , version should be an integral value > 0")
    return number


def _decode_inputs(wire: WireRequest) -> tuple[list[Tensor], dict[int, MemoryReference]]:
    """The inputs, and where those without data are, by their position."""
    message, raw, packed = wire
    model_name = message.model_name
    inputs: list[Tensor] = []
    references: dict[int, MemoryReference] = {}
    taken = 0
    for tensor in message.inputs:
        name = tensor.name
        datatype = BY_PROTOCOL_NAME.get(tensor.datatype)
        if datatype is None:
            expected = ", ".join(BY_PROTOCOL_NAME)
            raise InvalidArgument(
                f"invalid datatype for input '{name}' for model '{shown_name(model_name)}': expected one of "
                f"{expected}, got '{tensor.datatype[:100]}'"
            )
        shape = tuple(tensor.shape)
        byte_size = expected_byte_size(name, datatype, shape)
        reference = memory_reference(tensor) if tensor.parameters else None
        data: Buffer
        is_laid_out = False
        if reference is not None:
            if tensor.HasField("contents"):
                raise InvalidArgument(
                    f"unexpected 'content' provided when using shared memory for input tensor '{name}' for model "
                    f"'{shown_name(model_name)}'"
                )
            references[len(inputs)] = reference
            data, size = b"", reference.byte_size
        elif tensor.HasField("contents"):
            if raw:
                raise InvalidArgument(
                    "contents field must not be specified when using raw_input_contents "
                    f"for '{name}' for model '{shown_name(model_name)}'"
                )
            if packed and (contents := packed.get(len(inputs))) is not None:
                data = contents.raw(unexpected_contents(name, model_name), datatype)
                is_laid_out = datatype is DataType.BYTES and contents.element_count == math.prod(shape)
            else:
                data = encode_contents(tensor.contents, name, datatype, model_name)
            size = len(data)
        elif taken < len(raw):
            data = raw[taken]
            size = len(data)
            taken += 1
        else:
            raise InvalidArgument(
                f"unable to find data for input tensor '{name}' for model '{shown_name(model_name)}' in request."
            )
        if byte_size is not None and size != byte_size:
            raise InvalidArgument(
                f"[request id: {message.id or '<id_unknown>'}] input byte size mismatch for input '{name}' "
                f"for model '{shown_name(model_name)}'. Expected {byte_size}, got {size}"
            )
        inputs.append((LaidOutTensor if is_laid_out else Tensor)(name, datatype, shape, data))
    return inputs, references


def encode_response(response: InferenceResponse, is_final: bool | None = None) -> list[Buffer]:
    """The parts of a serialized ModelInferResponse; large tensors stay where they are. `is_final` is not said where it
    is None.

    Raises:
        InvalidArgument: it would be larger than gRPC's limit.
    """
    parts: list[Buffer] = [b""]
    size = 0  # of what may be long
    if response.id:
        request_id = response.id.encode()
        parts += (field_start(_RESPONSE_ID, len(request_id)), request_id)
        size = len(request_id)
    outputs: list[tuple[str, DataType, Sequence[int]]] = []
    for tensor in response.outputs:
        outputs.append((tensor.name, tensor.datatype, tensor.shape))
        data = tensor.data
        if type(data) is not bytes:
            data = flat(data)
        length = len(data)
        parts += (field_start(_RAW_OUTPUT_CONTENTS, length), data)
        size += length
    if response.parameters:
        parts[0] = _response_start(
            response.model_name, response.model_version, tuple(outputs), is_final, tuple(response.parameters.items())
        )
        size += len(parts[0])
    else:
        start = _usual_start if len(outputs) <= _MOST_OUTPUTS_KEPT else _response_start
        parts[0] = start(response.model_name, response.model_version, tuple(outputs), is_final)
    if size < COPY_UP_TO:
        return [b"".join(parts)]
    size = sum(map(len, parts))
    if size > MAX_RESPONSE_SIZE:
        raise InvalidArgument(
            f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_RESPONSE_SIZE}."
        )
    return parts


def encode_stream_response(response: InferenceResponse) -> list[Buffer]:
    """As `encode_response`, a ModelStreamInferResponse, which says whether it is the last one of its request.

    Raises:
        InvalidArgument: it would be larger than gRPC's limit.
    """
    parts = encode_response(response, response.is_final)
    return [field_start(_INFER_RESPONSE, sum(map(len, parts))), *parts]


def encode_empty_final(request: RequestNames) -> bytes:
    """A serialized ModelStreamInferResponse that says only that no more responses to the request come."""
    response: Any = message_class("inference.ModelStreamInferResponse")()
    inner = response.infer_response
    inner.model_name, inner.model_version, inner.id = request
    inner.parameters[FINAL].bool_param = True
    serialized: bytes = response.SerializeToString()
    return serialized


def encode_stream_error(error_message: str, request: RequestNames | None, request_id: str) -> bytes:
    """A serialized ModelStreamInferResponse for a failed request; None where it could not even be parsed. The id by
    which the server knows it is a parameter."""
    response: Any = message_class("inference.ModelStreamInferResponse")()
    response.error_message = error_message.encode(errors="replace").decode()
    inner = response.infer_response
    if request is not None:
        inner.model_name, inner.model_version, inner.id = request
    inner.parameters[FINAL].bool_param = True
    inner.parameters[REQUEST_ID].string_param = request_id
    serialized: bytes = response.SerializeToString()
    return serialized


def _response_start(
    model_name: str,
    model_version: int,
    outputs: Sequence[tuple[str, DataType, Sequence[int]]],
    is_final: bool | None,
    parameters: Sequence[tuple[str, ParameterValue]] = (),
) -> bytes:
    """A serialized ModelInferResponse but for its id and its data, which may follow: fields have no order."""
    message: Any = message_class("inference.ModelInferResponse")(
        model_name=model_name, model_version=str(model_version)
    )
    for key, value in parameters:
        _encode_parameter(key, message.parameters[key], value)
    if is_final is not None:
        message.parameters[FINAL].bool_param = is_final
    for name, datatype, shape in outputs:
        message.outputs.add(name=name, datatype=datatype.name, shape=shape)
    serialized: bytes = message.SerializeToString()
    return serialized


# A model's responses differ in their data and ids only. Those with parameters of their own are not kept: equal keys
# could mean different ones, as 1 and True do.
_usual_start = lru_cache(maxsize=512)(_response_start)
_MOST_OUTPUTS_KEPT = 32


def _encode_parameter(key: str, parameter: Any, value: ParameterValue) -> None:
    match value:
        case bool():  # before int, which it is as well
            parameter.bool_param = value
        case int() if -MAX_INT64 <= value <= MAX_INT64:
            parameter.int64_param = value
        case int() if 0 < value <= 2 * MAX_INT64 + 1:
            parameter.uint64_param = value
        case float():
            parameter.double_param = value
        case str():
            parameter.string_param = value
        case _:
            kind = type(value).__name__
            raise Internal(f"response parameter '{key}' is {value!r:.99} of type '{kind}', which gRPC has no field for")
