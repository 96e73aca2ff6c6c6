"""Codec of the generate extension: plain JSON objects to `InferenceRequest`, and `InferenceResponse` to plain objects.

Pure. Members whose names are inputs of the model become tensors, all others parameters. Source: reference section
"Generate", Triton's generate extension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import InvalidArgument
from protocol.http.codec.infer import MAX_TENSORS, json_parameter
from protocol.http.codec.json_text import NESTING_TEXT, JsonReader
from protocol.http.codec.packed_data import PackedData
from protocol.http.codec.parameters import custom_parameter
from protocol.http.codec.tensor_json import decode_data, encode_data
from protocol.http.errors import BodyTooLarge
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, LaidOutTensor, ParameterValue, Tensor

READER = JsonReader(dict[str, Any])
# So many members are looked for twice in the text; more of them are read with each of their names.
_MOST_SOUGHT = 32


def decode_generate_request(
    body: Buffer, metadata: ModelMetadata, *, model_version: int, max_input_size: int
) -> InferenceRequest:
    """Read a request for the model of `metadata`.

    Raises:
        InvalidArgument, BodyTooLarge: with the sentence for the client.
    """
    members = READER.read(body)
    return request_of(members, bytes(body), metadata, model_version=model_version, max_input_size=max_input_size)


def request_of(
    members: Mapping[str, Any], text: bytes, metadata: ModelMetadata, *, model_version: int, max_input_size: int
) -> InferenceRequest:
    """Of the members of a text, in which `PackedData` may stand for long arrays: they are not in the text then.

    Raises:
        InvalidArgument, BodyTooLarge: with the sentence for the client.
    """
    _check_keys(members, text)
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    request = InferenceRequest(metadata.name, [], model_version, id=_request_id(members))
    total = 0
    seen: set[str] = set()
    for keyword, key, value in _flattened(members, inputs):
        if key in seen:
            raise _given_twice(key)
        seen.add(key)
        expected = inputs.get(key)
        if expected is None:
            request.parameters[key] = _converted(keyword, key, value)
            continue
        tensor = _decode_tensor(expected, value, metadata.name, max_input_size)
        total += tensor.byte_size
        if total > max_input_size:
            raise BodyTooLarge(
                f"request size of {total} bytes with input '{key}' of size {tensor.byte_size} bytes exceeds the "
                f"maximum allowed input size of {max_input_size}. Use --http-max-input-size to increase the limit.",
                "max_input_size",
            )
        request.inputs.append(tensor)
    return request


def encode_generate_response(response: InferenceResponse, value_of: Callable[[Tensor], object] | None = None) -> bytes:
    """One JSON object, its members in alphabetical order. A tensor of one element is a bare value, others are flat
    arrays. `value_of` gives what stands for a tensor.

    Raises:
        InvalidArgument: a BYTES output that is no text.
        Internal: an output's data is not what its shape says.
    """
    value_of = value_of or value_of_tensor
    members: dict[str, object] = {"model_name": response.model_name, "model_version": str(response.model_version)}
    if response.id:
        members["id"] = response.id
    members.update((key, json_parameter(value)) for key, value in response.parameters.items())
    members.update((tensor.name, value_of(tensor)) for tensor in response.outputs)
    return msgspec.json.encode(members, order="sorted")


def _request_id(members: Mapping[str, Any]) -> str:
    """The member `id`, which goes on to be a tensor or a parameter as well."""
    value = members.get("id", "")
    if not isinstance(value, str):
        raise InvalidArgument(f"Unable to parse 'id': attempt to access JSON non-string as string, got {value!r:.40}")
    return value


def _check_keys(members: Mapping[str, Any], text: bytes) -> None:
    """Refuse more names than a request may have, and a name that is given twice, of which a parser keeps the last.
    Mostly a look at the text tells that there is none."""
    keys = [*members, *(inner if isinstance(inner := members.get("parameters"), dict) else ())]
    if len(keys) > MAX_TENSORS:
        raise InvalidArgument(f"the request has {len(keys)} keywords, expected at most {MAX_TENSORS}")
    # A backslash can write one name in several ways.
    if len(keys) <= _MOST_SOUGHT and b"\\" not in text and all(text.count(b'"%b"' % _utf8(key)) == 1 for key in keys):
        return
    try:
        json.loads(text, object_pairs_hook=_without_twins, parse_int=len, parse_float=len)  # numbers do not matter
    except RecursionError:
        raise InvalidArgument(NESTING_TEXT) from None


def _utf8(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _without_twins(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _given_twice(key)
        seen.add(key)


def _given_twice(key: str) -> InvalidArgument:
    return InvalidArgument(f"keyword '{key[:256]}' is given more than once")


def _converted(keyword: str, key: str, value: Any) -> ParameterValue:
    try:
        return custom_parameter(key, value)
    except InvalidArgument as error:
        raise InvalidArgument(f"Converting keyword: '{keyword}': {error.message}") from None


def _flattened(members: Mapping[str, Any], inputs: Mapping[str, TensorMetadata]) -> Iterator[tuple[str, str, Any]]:
    """All members, those of `parameters` in its place, each with the keyword at the top level that it comes from."""
    for key, value in members.items():
        if key != "parameters":
            yield key, key, value
        elif key in inputs:
            raise InvalidArgument("Keyword 'parameters' for nested schema also given as input tensor name")
        elif not isinstance(value, dict):
            raise InvalidArgument(
                f"Expected JSON object for keyword: 'parameters': attempt to get members for non-object, "
                f"got {value!r:.40}"
            )
        else:
            yield from (("parameters", name, inner) for name, inner in value.items())


def _decode_tensor(expected: TensorMetadata, value: Any, model: str, max_input_size: int) -> Tensor:
    datatype = BY_PROTOCOL_NAME[expected.datatype]
    if isinstance(value, PackedData):
        shape = _deduced_shape(expected, value.count)
        if value.is_nested:
            raise _array_in_array(expected.name)
        packed = decode_data(expected.name, datatype, shape, value, model=model, max_size=max_input_size)
        kind = LaidOutTensor if datatype is DataType.BYTES else Tensor
        return kind(expected.name, datatype, shape, packed)
    elements = value if isinstance(value, list) else [value]
    if not elements:
        return Tensor(expected.name, datatype, (), b"")
    shape = _deduced_shape(expected, len(elements))
    for element in elements:
        if isinstance(element, list):
            raise _array_in_array(expected.name)
    data = decode_data(expected.name, datatype, shape, elements, model=model, max_size=max_input_size)
    return Tensor(expected.name, datatype, shape, data)


def _array_in_array(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"Unable to parse 'data': expected a value or an array of values for input '{name}', got an array in an array"
    )


def _deduced_shape(expected: TensorMetadata, count: int) -> tuple[int, ...]:
    """The innermost variable dimension takes what the fixed ones leave of `count`, all other variable ones are 1."""
    fixed = math.prod(dimension for dimension in expected.shape if dimension != -1)
    rest = count // fixed if fixed else 0
    shape: list[int] = []
    for dimension in reversed(expected.shape):
        if dimension == -1:
            dimension, rest = rest, 1
        shape.insert(0, dimension)
    if math.prod(shape) != count:
        raise InvalidArgument(
            f"The schema can not convert input '{expected.name}' to tensor with proper shape: expected "
            f"{list(expected.shape)}, got {count} elements"
        )
    return tuple(shape)


def value_of_tensor(tensor: Tensor) -> object:
    """Ready for msgspec. Raises as `encode_generate_response`."""
    data = encode_data(tensor)
    if tensor.element_count != 1:
        return data
    if isinstance(data, msgspec.Raw):  # the text of an array of one element, which JSON has no word for
        return msgspec.Raw(bytes(data)[1:-1])
    (value,) = data
    return value
