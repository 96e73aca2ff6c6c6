"""The infer messages: ModelInferRequest to InferenceRequest, InferenceResponse to ModelInferResponse.

Pure functions over bytes. What can be known without the model's configuration is checked here; the core checks the
rest. Large raw contents stay views of the received bytes, and outputs are copied once, into the serialized response.
Source: KServe v2 over gRPC with Triton's extensions; the error texts are Triton's where it has one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Internal, InvalidArgument
from protocol.grpc.codec import parse
from protocol.grpc.contents import encode_contents
from protocol.grpc.parameters import check_output_parameters, check_shared_memory, decode_request_parameters
from protocol.grpc.wire import cut_field, field_parts
from protocol.messages import LATEST_VERSION, Buffer, InferenceRequest, InferenceResponse, ParameterValue, Tensor
from protocol.proto import message_class

MAX_RESPONSE_SIZE = 2**31 - 1
MAX_INT64 = 2**63 - 1
# Bounds on what a request makes the server loop over in Python; numpy has at most 64 dimensions.
MAX_TENSORS = 4096
MAX_RANK = 64

# Cutting raw contents out of the bytes costs more than copying them where they are small.
_CUT_ABOVE = 16384
_RAW_INPUT_CONTENTS = 7  # field numbers
_RAW_OUTPUT_CONTENTS = 6
_INFER_RESPONSE = 2

_VERSION = re.compile(r"[+-]?[0-9]{1,20}")


class WireRequest(NamedTuple):
    """A parsed ModelInferRequest; `message` is the protobuf message, `raw` its `raw_input_contents`."""

    message: Any
    raw: Sequence[Buffer]


def parse_request(data: bytes | memoryview) -> WireRequest:
    """Parse a serialized ModelInferRequest; large raw contents become views of `data`.

    Raises:
        InvalidArgument: it is not one.
    """
    message_type = message_class("inference.ModelInferRequest")
    if len(data) > _CUT_ABOVE:
        cut = cut_field(memoryview(data), _RAW_INPUT_CONTENTS)
        if cut is not None:
            rest, raw = cut
            return WireRequest(parse(message_type, rest), raw)
    message: Any = parse(message_type, data)
    return WireRequest(message, message.raw_input_contents)


def decode_request(wire: WireRequest) -> InferenceRequest:
    """The request in the server's own vocabulary.

    Raises:
        InvalidArgument: it is wrong whatever the model.
        Unsupported: it asks for what is not supported yet.
    """
    message = wire.message
    _check_count(message.inputs, "inputs")
    _check_count(message.outputs, "requested outputs")
    _check_count(message.parameters, "parameters")
    request = InferenceRequest(
        message.model_name, _decode_inputs(wire), decode_version(message.model_version), message.id
    )
    for output in message.outputs:
        check_output_parameters(output)
    request.requested_outputs = tuple([output.name for output in message.outputs])
    if message.parameters:
        decode_request_parameters(message.parameters, request)
    return request


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


def _decode_inputs(wire: WireRequest) -> list[Tensor]:
    message, raw = wire
    model_name = message.model_name
    inputs: list[Tensor] = []
    taken = 0
    for tensor in message.inputs:
        name = tensor.name
        datatype = BY_PROTOCOL_NAME.get(tensor.datatype)
        if datatype is None:
            expected = ", ".join(BY_PROTOCOL_NAME)
            raise InvalidArgument(
                f"invalid datatype for input '{name}' for model '{model_name}': expected one of {expected}, "
                f"got '{tensor.datatype[:100]}'"
            )
        if tensor.parameters:
            check_shared_memory(tensor)
        shape = tuple(tensor.shape)
        byte_size = _expected_byte_size(name, datatype, shape)
        data: Buffer
        if tensor.HasField("contents"):
            if raw:
                raise InvalidArgument(
                    "contents field must not be specified when using raw_input_contents "
                    f"for '{name}' for model '{model_name}'"
                )
            data = encode_contents(tensor.contents, name, datatype, model_name)
        elif taken < len(raw):
            data = raw[taken]
            taken += 1
        else:
            raise InvalidArgument(f"unable to find data for input tensor '{name}' for model '{model_name}' in request.")
        if byte_size is not None and len(data) != byte_size:
            raise InvalidArgument(
                f"[request id: {message.id or '<id_unknown>'}] input byte size mismatch for input '{name}' "
                f"for model '{model_name}'. Expected {byte_size}, got {len(data)}"
            )
        inputs.append(Tensor(name, datatype, shape, data))
    return inputs


def _expected_byte_size(name: str, datatype: DataType, shape: tuple[int, ...]) -> int | None:
    """How many bytes the shape takes; None for BYTES, whose elements say so themselves.

    Raises:
        InvalidArgument: no tensor has such a shape.
    """
    if len(shape) > MAX_RANK:
        raise InvalidArgument(
            f"invalid shape for input '{name}': expected at most {MAX_RANK} dimensions, got {len(shape)}"
        )
    if shape and min(shape) < 0:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {_listed(shape)} contains one or more invalid dimensions"
        )
    count = math.prod(shape)
    if count > MAX_INT64:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {_listed(shape)} causes total element count to exceed "
            f"maximum size of {MAX_INT64}"
        )
    size = count * (datatype.itemsize or 4)  # an element of BYTES takes at least the 4 bytes of its length
    if size > MAX_INT64:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': element count ({count}) * data type size "
            f"({datatype.itemsize or 4}) exceeds maximum allowed size ({MAX_INT64})"
        )
    return size if datatype.itemsize else None


def _listed(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def encode_response(response: InferenceResponse) -> bytes:
    """A serialized ModelInferResponse.

    Raises:
        InvalidArgument: it would be larger than gRPC's limit.
    """
    return b"".join(_response_parts(response, response.parameters))


def encode_stream_response(response: InferenceResponse) -> bytes:
    """A serialized ModelStreamInferResponse, marked as the last one of its request.

    Raises:
        InvalidArgument: it would be larger than gRPC's limit.
    """
    parts = _response_parts(response, {**response.parameters, "triton_final_response": True})
    return b"".join(field_parts(_INFER_RESPONSE, *parts))


def encode_stream_error(error_message: str, request: WireRequest | None) -> bytes:
    """A serialized ModelStreamInferResponse for a failed request; None where it could not even be parsed."""
    response: Any = message_class("inference.ModelStreamInferResponse")()
    response.error_message = error_message.encode(errors="replace").decode()
    inner = response.infer_response
    if request is not None:
        inner.id = request.message.id
        inner.model_name = request.message.model_name
        inner.model_version = request.message.model_version
    inner.parameters["triton_final_response"].bool_param = True
    serialized: bytes = response.SerializeToString()
    return serialized


def _response_parts(response: InferenceResponse, parameters: dict[str, ParameterValue]) -> list[Buffer]:
    message: Any = message_class("inference.ModelInferResponse")(
        model_name=response.model_name, model_version=str(response.model_version), id=response.id
    )
    for key, value in parameters.items():
        _encode_parameter(key, message.parameters[key], value)
    parts: list[Buffer] = [b""]
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
        parts += field_parts(_RAW_OUTPUT_CONTENTS, tensor.data)
    parts[0] = message.SerializeToString()
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    if size > MAX_RESPONSE_SIZE:
        raise InvalidArgument(
            f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_RESPONSE_SIZE}."
        )
    return parts


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
            raise Internal(f"response parameter '{key}' is {value!r}, which gRPC has no field for")
