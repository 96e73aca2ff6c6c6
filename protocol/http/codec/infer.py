"""Codec of inference bodies: JSON and binary tensors to `InferenceRequest`, and `InferenceResponse` to headers and
body.

Pure: no I/O, no model knowledge; what only a model's configuration can tell, the core checks.

A body is JSON, followed by the raw layouts of those inputs that announce a `binary_data_size`, in their order. Source:
reference sections "Infer request", "Input data rules" and "Outputs and response".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import msgspec

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import InvalidArgument, shown_name
from protocol.http.codec.json_text import JsonReader, write_non_finite
from protocol.http.codec.parameters import set_parameters
from protocol.http.codec.tensor_json import PackedElements, decode_data, encode_data
from protocol.http.errors import BodyTooLarge
from protocol.http.reply import JSON_CONTENT, Headers
from protocol.messages import (
    Buffer,
    InferenceRequest,
    InferenceResponse,
    LaidOutTensor,
    ParameterValue,
    Tensor,
    flat,
)
from protocol.shapes import expected_byte_size
from protocol.shared_memory.placement import MemoryReference, Placement

# Of a response whose JSON is kept for the next one like it.
_MOST_OUTPUTS_KEPT = 32
HEADER_LENGTH = b"inference-header-content-length"
# A bound on what a request makes the server loop over in Python.
MAX_TENSORS = 4096

Unsigned: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class TensorParameters(msgspec.Struct):
    """What inputs and outputs have in common."""

    shared_memory_region: str | None = None
    shared_memory_offset: Unsigned = 0
    shared_memory_byte_size: Unsigned = 0

    def memory_reference(self) -> MemoryReference | None:
        if self.shared_memory_region is None:
            return None
        return MemoryReference(self.shared_memory_region, self.shared_memory_offset, self.shared_memory_byte_size)


class InputParameters(TensorParameters):
    binary_data_size: Unsigned | None = None


class RequestedInput(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: InputParameters | None = None
    data: Any = None  # read by its datatype, see `tensor_json`


class OutputParameters(TensorParameters):
    """A `classification` of 0 is none."""

    binary_data: bool | None = None
    classification: Unsigned | None = None


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
    """Which outputs go in the binary tail: those that `binary` says, all others as `default_binary` says. Those
    `elsewhere` have their data in shared memory, and none in the response."""

    default_binary: bool = False
    binary: Mapping[str, bool] = field(default_factory=dict)
    elsewhere: Collection[str] = ()
    # Nothing goes as JSON, whatever the outputs are; where some are named there are no others.
    is_all_binary: bool = field(init=False)

    def __post_init__(self) -> None:
        is_all_binary = all(self.binary.values()) if self.binary else self.default_binary
        object.__setattr__(self, "is_all_binary", is_all_binary)

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output, self.default_binary)


_ALL_JSON, _ALL_BINARY = OutputEncoding(), OutputEncoding(default_binary=True)


class DecodedRequest(msgspec.Struct, frozen=True):
    """`placement` is None where all tensors are in the messages; inputs have no data yet where it names them."""

    request: InferenceRequest
    encoding: OutputEncoding
    placement: Placement | None = None


READER = JsonReader(InferBody)
_NO_PARAMETERS = InputParameters()
# As enumerations have it, each name is a call.
_NAMES = {datatype: datatype.name for datatype in DataType}


def parse_header_length(value: bytes | None, body_size: int) -> int | None:
    """The length of the JSON part as the header gives it; None where the header is absent and all is JSON. 0 announces
    a raw binary request.

    Raises:
        InvalidArgument: no number, or none within the body.
    """
    if value is None:
        return None
    length = _usual_number(value) if len(value) <= _USUAL_DIGITS else _number(value)
    check_header_size(length, body_size)
    return length


def check_header_size(length: int, body_size: int) -> None:
    """Raises InvalidArgument: the JSON part does not lie within the body."""
    if not 0 <= length <= body_size:
        raise InvalidArgument(f"inference header size should be in range (0, {body_size}), got: {length}")


def header_size(value: bytes, what: str) -> int:
    """A number as headers give the length of the JSON part. Raises InvalidArgument, which says of what."""
    text = value.decode("latin-1").strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidArgument(f"Unable to parse {what}, got: {text}")
    # Ten digits are enough for the range; more are never converted.
    if len(digits) > 10 or not -(2**31) <= int(text) < 2**31:
        raise InvalidArgument(f"Unable to parse {what}, value is out of range [ -2147483648, 2147483647 ], got: {text}")
    return int(text)


def _number(value: bytes) -> int:
    return header_size(value, "Inference-Header-Content-Length")


_USUAL_DIGITS = 11
_usual_number = lru_cache(maxsize=256)(_number)


def decode_infer_request(
    body: Buffer, header_length: int | None, *, model_name: str, model_version: int, max_input_size: int
) -> DecodedRequest:
    """Read a request. Binary tensors stay views of `body`, JSON tensors become memory of their own.

    Raises:
        InvalidArgument, BodyTooLarge: with the sentence for the client.
    """
    view = memoryview(body)
    json_size = len(view) if header_length is None else header_length
    if json_size > max_input_size:
        raise json_too_large(json_size, max_input_size)
    message = READER.read(view[:json_size])
    return request_of(
        message, view, header_length, model_name=model_name, model_version=model_version, max_input_size=max_input_size
    )


def request_of(
    message: InferBody,
    view: memoryview,
    header_length: int | None,
    *,
    model_name: str,
    model_version: int,
    max_input_size: int,
) -> DecodedRequest:
    """The request of a body whose JSON is read. Raises as `decode_infer_request`."""
    json_size = len(view) if header_length is None else header_length
    _check_counts(message)
    request = InferenceRequest(model_name, [], model_version, id=message.id or "")
    default_binary = set_parameters(request, message.parameters) if message.parameters else False
    tail = view[json_size:].toreadonly()
    position = 0
    in_memory: dict[int, MemoryReference] = {}
    for item in message.inputs:
        if item.parameters is not None and (reference := item.parameters.memory_reference()) is not None:
            in_memory[len(request.inputs)] = reference
        rest = tail[position:] if position else tail
        size, tensor = _read_input(item, model_name, rest, header_length is not None, max_input_size)
        position += size
        request.inputs.append(tensor)
    if position < len(tail):
        raise InvalidArgument(
            f"unexpected additional input data for model '{shown_name(model_name)}': {len(tail) - position} bytes "
            f"after the last binary input"
        )
    if not in_memory:  # else the sizes are not known yet
        inputs = tuple([(each.name, each.datatype, each.shape, len(each.data)) for each in request.inputs])
        request.template = (inputs, tuple([output.name for output in message.outputs or ()]))
    if message.outputs:
        return _with_outputs(request, message.outputs, in_memory)
    if in_memory:
        return DecodedRequest(request, OutputEncoding(default_binary), Placement(in_memory))
    return DecodedRequest(request, _ALL_BINARY if default_binary else _ALL_JSON)


def _check_counts(message: InferBody) -> None:
    for what, found in (
        ("inputs", message.inputs),
        ("requested outputs", message.outputs),
        ("parameters", message.parameters),
    ):
        if found and len(found) > MAX_TENSORS:
            raise InvalidArgument(f"the request has {len(found)} {what}, expected at most {MAX_TENSORS}")


def _with_outputs(
    request: InferenceRequest, outputs: list[RequestedOutput], in_memory: Mapping[int, MemoryReference]
) -> DecodedRequest:
    """Outputs that are named: one without `binary_data` is JSON, whatever the request's default is."""
    binary: dict[str, bool] = {}
    places: dict[str, MemoryReference] = {}
    classes: dict[str, int] = {}
    for output in outputs:
        parameters = output.parameters
        binary[output.name] = parameters is not None and parameters.binary_data is True
        if parameters is None:
            continue
        if (reference := parameters.memory_reference()) is not None:
            _check_memory_alone(output.name, parameters)
            places[output.name] = reference
        elif parameters.classification:
            classes[output.name] = parameters.classification
    request.requested_outputs = tuple([output.name for output in outputs])  # what comes twice, the core refuses
    placement = Placement(in_memory, places, classes) if in_memory or places or classes else None
    return DecodedRequest(request, OutputEncoding(binary=binary, elsewhere=places), placement)


def _check_memory_alone(name: str, parameters: OutputParameters) -> None:
    other = "classification" if parameters.classification else "binary_data" if parameters.binary_data else ""
    if other:
        raise InvalidArgument(f"Output can't set both 'shared_memory_region' and '{other}' for output '{name}'")


def json_too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
        f"Use --http-max-input-size to increase the limit.",
        "max_input_size",
    )


def encode_infer_response(
    response: InferenceResponse, encoding: OutputEncoding, data_of: Callable[[Tensor], Any] = encode_data
) -> tuple[Headers, list[Buffer]]:
    """Headers (without `content-length`) and body parts: the JSON, then the binary outputs as views of the tensors.
    `data_of` makes the member `data` of an output that goes as JSON, and is called in their order.

    Raises:
        InvalidArgument: a BYTES output that is no text is wanted as JSON.
        Internal: an output's data is not what its shape says.
    """
    if encoding.is_all_binary and not (response.id or response.parameters or encoding.elsewhere):
        described = []
        parts: list[Buffer] = [b""]  # the JSON's place
        for tensor in response.outputs:
            data = tensor.data
            if type(data) is not bytes:
                data = flat(data)
            described.append((tensor.name, tensor.datatype, tensor.shape, len(data)))
            parts.append(data)
        write = _usual_text if len(described) <= _MOST_OUTPUTS_KEPT else _text
        parts[0], headers = write(response.model_name, response.model_version, tuple(described))
        return headers, parts
    outputs: list[OutputBody] = []
    parts = []
    for tensor in response.outputs:
        output = OutputBody(tensor.name, _NAMES[tensor.datatype], tensor.shape)
        if tensor.name in encoding.elsewhere:
            pass  # no data, and nothing said of it
        elif encoding.is_binary(tensor.name):
            output.parameters = BinaryDataSize(tensor.byte_size)
            if tensor.byte_size:
                parts.append(flat(tensor.data))
        else:
            output.data = data_of(tensor)
        outputs.append(output)
    body = ResponseBody(
        response.id or msgspec.UNSET,
        response.model_name,
        str(response.model_version),
        {key: json_parameter(value) for key, value in response.parameters.items()}
        if response.parameters
        else msgspec.UNSET,
        outputs,
    )
    text = msgspec.json.encode(body)
    return json_headers(len(text), has_tail=bool(parts)), [text, *parts]


def json_headers(size: int, *, has_tail: bool) -> Headers:
    """Those of a body whose JSON has so many bytes, with or without binary data behind it."""
    if not has_tail:
        return JSON_CONTENT
    return ((b"content-type", b"application/octet-stream"), (HEADER_LENGTH, b"%d" % size))


def _text(
    model_name: str, model_version: int, outputs: tuple[tuple[str, DataType, tuple[int, ...], int], ...]
) -> tuple[bytes, Headers]:
    """The JSON, and its headers, of a response whose outputs are all binary, of so many bytes each."""
    described = [
        OutputBody(name, datatype.name, shape, BinaryDataSize(size)) for name, datatype, shape, size in outputs
    ]
    text = msgspec.json.encode(ResponseBody(msgspec.UNSET, model_name, str(model_version), msgspec.UNSET, described))
    return text, json_headers(len(text), has_tail=any(size for *_, size in outputs))


# The responses of a model differ in their data, mostly, and not in their JSON.
_usual_text = lru_cache(maxsize=512)(_text)


def _read_input(
    item: RequestedInput, model_name: str, tail: memoryview, has_header_length: bool, max_input_size: int
) -> tuple[int, Tensor]:
    """The tensor, and how many bytes of the tail it takes. One in shared memory has no data yet."""
    name = item.name
    datatype = BY_PROTOCOL_NAME.get(item.datatype)
    if datatype is None:
        raise InvalidArgument(
            f"invalid datatype for input {name}: got '{item.datatype}', expected one of {', '.join(BY_PROTOCOL_NAME)}"
        )
    expected_byte_size(name, datatype, item.shape)  # whether there is such a shape; the core checks the data's size
    shape = tuple(item.shape)
    parameters = item.parameters or _NO_PARAMETERS
    size, region = parameters.binary_data_size, parameters.shared_memory_region
    if (item.data is not None) + (size is not None) + (region is not None) != 1:
        raise _wrong_source(item, parameters)
    if region is not None:
        return 0, Tensor(name, datatype, shape, b"")
    if size is None:
        data = decode_data(name, datatype, shape, item.data, model=model_name, max_size=max_input_size)
        kind = LaidOutTensor if isinstance(item.data, PackedElements) and datatype is DataType.BYTES else Tensor
        return 0, kind(name, datatype, shape, data)
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


def _wrong_source(item: RequestedInput, parameters: InputParameters) -> InvalidArgument:
    """The error for a tensor that is not given in exactly one of the three ways."""
    given = [
        text
        for value, text in (
            (item.data, "'data'"),
            (parameters.binary_data_size, "'binary_data_size'"),
            (parameters.shared_memory_region, "'shared_memory_region'"),
        )
        if value is not None
    ]
    found = f"But set {' '.join(given)}" if given else "But no field is set"
    return InvalidArgument(
        f"Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. {found} for input '{item.name}'"
    )


def json_parameter(value: ParameterValue) -> ParameterValue | msgspec.Raw:
    """A response parameter, ready for msgspec."""
    if isinstance(value, float) and not math.isfinite(value):
        return write_non_finite(value)
    return value
