"""The codec of an inference exchange: HTTP body and header length to `InferenceRequest`, `InferenceResponse` to
headers and body parts. Pure: no I/O, no model knowledge; what only a model's configuration can tell, the core checks.

A body is JSON, followed by the raw layouts of those inputs that announce a `binary_data_size`, in their order.
Source: reference sections "Infer request", "Input data rules" and "Outputs and response".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import msgspec

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import InvalidArgument, PayloadTooLarge, Unsupported
from protocol.http.exchange import JSON_CONTENT, Headers
from protocol.http.infer_parameters import set_parameters
from protocol.http.json_text import JsonReader, write_non_finite
from protocol.http.tensor_json import decode_data, encode_data
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, ParameterValue, Tensor

MAX_INT64 = 2**63 - 1
HEADER_LENGTH = b"inference-header-content-length"

Unsigned: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class InputParameters(msgspec.Struct):
    binary_data_size: Unsigned | None = None
    shared_memory_region: str | None = None


class RequestedInput(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: InputParameters | None = None
    data: Any = None  # read by its datatype, see `tensor_json`


class OutputParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: Unsigned | None = None
    shared_memory_region: str | None = None


class RequestedOutput(msgspec.Struct):
    name: str
    parameters: OutputParameters | None = None


class InferBody(msgspec.Struct):
    """A request's JSON. Unknown members are ignored; null stands for an absent optional member."""

    inputs: list[RequestedInput]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[RequestedOutput] | None = None


class BinaryDataSize(msgspec.Struct):
    binary_data_size: int


class OutputBody(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: BinaryDataSize | None = None
    data: Any = msgspec.UNSET


class ResponseBody(msgspec.Struct, omit_defaults=True):
    id: str | msgspec.UnsetType
    model_name: str
    model_version: str
    parameters: dict[str, Any] | msgspec.UnsetType
    outputs: list[OutputBody]


@dataclass(frozen=True, slots=True)
class OutputEncoding:
    """Which outputs go in the binary tail: those that `binary` says, all others as `default_binary` says."""

    default_binary: bool = False
    binary: Mapping[str, bool] = field(default_factory=dict)

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output, self.default_binary)


_READER = JsonReader(InferBody)


def parse_header_length(value: bytes | None, body_size: int) -> int | None:
    """The length of the JSON part as the header gives it; None where the header is absent and all is JSON.

    Raises:
        InvalidArgument: no number, or none within the body.
        Unsupported: 0, which announces a raw binary request.
    """
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidArgument(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    # Ten digits are enough for the range; more are never converted.
    if len(digits) > 10 or not -(2**31) <= int(text) < 2**31:
        raise InvalidArgument(
            f"Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            f"got: {text}"
        )
    length = int(text)
    if not 0 <= length <= body_size:
        raise InvalidArgument(f"inference header size should be in range (0, {body_size}), got: {text}")
    if length == 0:
        raise Unsupported(
            "raw binary requests (Inference-Header-Content-Length of 0) are not supported yet: describe the inputs in "
            "JSON and give its length in Inference-Header-Content-Length"
        )
    return length


def decode_infer_request(
    body: Buffer, header_length: int | None, *, model_name: str, model_version: int, max_input_size: int
) -> tuple[InferenceRequest, OutputEncoding]:
    """Read a request. Binary tensors stay views of `body`, JSON tensors become memory of their own.

    Raises:
        InvalidArgument, PayloadTooLarge, Unsupported: with the sentence for the client.
    """
    view = memoryview(body)
    json_size = len(view) if header_length is None else header_length
    if json_size > max_input_size:
        raise json_too_large(json_size, max_input_size)
    if json_size == 0:
        raise InvalidArgument("failed to parse the request JSON buffer: The document is empty at 0")
    message = _READER.read(view[:json_size])
    request = InferenceRequest(model_name, [], model_version, id=message.id or "")
    default_binary = set_parameters(request, message.parameters or {})
    tail = view[json_size:].toreadonly()
    position = 0
    for item in message.inputs:
        size, tensor = _read_input(item, model_name, tail[position:], header_length is not None, max_input_size)
        position += size
        request.inputs.append(tensor)
    if position < len(tail):
        raise InvalidArgument(
            f"unexpected additional input data for model '{model_name}': {len(tail) - position} bytes after the last "
            f"binary input"
        )
    if message.outputs:
        request.requested_outputs = tuple(dict.fromkeys(output.name for output in message.outputs))
        return request, OutputEncoding(binary={o.name: _is_binary(o) for o in message.outputs})
    return request, OutputEncoding(default_binary)


def json_too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
        f"Use --http-max-input-size to increase the limit."
    )


def encode_infer_response(response: InferenceResponse, encoding: OutputEncoding) -> tuple[Headers, list[Buffer]]:
    """Headers (without `content-length`) and body parts: the JSON, then the binary outputs as views of the tensors.

    Raises:
        InvalidArgument: a BYTES output that is no text is wanted as JSON.
        Internal: an output's data is not what its shape says.
    """
    parts: list[Buffer] = []
    outputs: list[OutputBody] = []
    for tensor in response.outputs:
        output = OutputBody(tensor.name, tensor.datatype.name, tensor.shape)
        if encoding.is_binary(tensor.name):
            output.parameters = BinaryDataSize(tensor.byte_size)
            if tensor.byte_size:
                parts.append(tensor.data)
        else:
            output.data = encode_data(tensor)
        outputs.append(output)
    body = ResponseBody(
        response.id or msgspec.UNSET,
        response.model_name,
        str(response.model_version),
        {key: _json_parameter(value) for key, value in response.parameters.items()} or msgspec.UNSET,
        outputs,
    )
    text = msgspec.json.encode(body)
    if not parts:
        return JSON_CONTENT, [text]
    headers = ((b"content-type", b"application/octet-stream"), (HEADER_LENGTH, b"%d" % len(text)))
    return headers, [text, *parts]


def _read_input(
    item: RequestedInput, model_name: str, tail: memoryview, has_header_length: bool, max_input_size: int
) -> tuple[int, Tensor]:
    """The tensor, and how many bytes of the tail it takes."""
    name = item.name
    datatype = BY_PROTOCOL_NAME.get(item.datatype)
    if datatype is None:
        raise InvalidArgument(
            f"invalid datatype for input {name}: got '{item.datatype}', expected one of {', '.join(BY_PROTOCOL_NAME)}"
        )
    shape = _check_shape(name, datatype, item.shape)
    parameters = item.parameters or InputParameters()
    size = parameters.binary_data_size
    _check_source(item, parameters)
    if parameters.shared_memory_region is not None:
        raise Unsupported(
            f"input '{name}': shared memory (parameter 'shared_memory_region') is not supported yet, send the tensor "
            f"as 'data' or with 'binary_data_size'"
        )
    if size is None:
        return 0, Tensor(name, datatype, shape, decode_data(name, datatype, shape, item.data, max_size=max_input_size))
    if size and not has_header_length:
        raise InvalidArgument(
            "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing "
            "inputs in binary data format"
        )
    if size > len(tail):
        raise InvalidArgument(
            f"unexpected size for input '{name}', expecting {size - len(tail)} additional bytes for model "
            f"'{model_name}'"
        )
    return size, Tensor(name, datatype, shape, tail[:size])


def _check_shape(name: str, datatype: DataType, dimensions: list[int]) -> tuple[int, ...]:
    listed = f"[{','.join(str(dimension)[:24] for dimension in dimensions[:64])}]"
    if any(not 0 <= dimension <= MAX_INT64 for dimension in dimensions):
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {listed} contains one or more invalid dimensions"
        )
    count = 0 if 0 in dimensions else 1
    for dimension in dimensions:  # stops early: the product of a hostile list would be a number of megabytes
        count *= dimension
        if count > MAX_INT64:
            break
    if count > MAX_INT64:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {listed} causes total element count to exceed maximum size of "
            f"{MAX_INT64}"
        )
    # A BYTES element takes at least its 4-byte length.
    item_size = datatype.itemsize or 4
    if count * item_size > MAX_INT64:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({item_size}) exceeds "
            f"maximum allowed size ({MAX_INT64})"
        )
    return tuple(dimensions)


def _check_source(item: RequestedInput, parameters: InputParameters) -> None:
    """Exactly one of the three ways to give a tensor."""
    given = [
        text
        for value, text in (
            (item.data, "'data'"),
            (parameters.binary_data_size, "'binary_data_size'"),
            (parameters.shared_memory_region, "'shared_memory_region'"),
        )
        if value is not None
    ]
    if len(given) != 1:
        found = f"But set {' '.join(given)}" if given else "But no field is set"
        raise InvalidArgument(
            f"Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. {found} for input '{item.name}'"
        )


def _is_binary(output: RequestedOutput) -> bool:
    """An output that is named without `binary_data` is JSON, whatever the request's default is."""
    parameters = output.parameters
    if parameters is None:
        return False
    if parameters.classification:
        raise Unsupported(f"output '{output.name}': classification (parameter 'classification') is not supported yet")
    if parameters.shared_memory_region is not None:
        raise Unsupported(
            f"output '{output.name}': shared memory (parameter 'shared_memory_region') is not supported yet"
        )
    return parameters.binary_data is True


def _json_parameter(value: ParameterValue) -> ParameterValue | msgspec.Raw:
    if isinstance(value, float) and not math.isfinite(value):
        return write_non_finite(value)
    return value
