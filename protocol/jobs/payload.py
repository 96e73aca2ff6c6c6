"""How inference requests and responses are kept in a job store. Pure.

A header in MessagePack, with its length before it, and the raw tensors behind it: independent of the protocol that the
request has come by, and of that by which its result is fetched.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.errors import Internal
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, ParameterValue, Tensor, flat

_LENGTH_BYTES = 4


class _Tensor(msgspec.Struct, array_like=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    byte_size: int


class _Request(msgspec.Struct, array_like=True):
    model_name: str
    model_version: int
    id: str
    requested_outputs: tuple[str, ...]
    parameters: dict[str, ParameterValue]
    priority: int
    timeout_microseconds: int
    inputs: list[_Tensor]


class _Response(msgspec.Struct, array_like=True):
    model_name: str
    model_version: int
    id: str
    parameters: dict[str, ParameterValue]
    is_final: bool
    outputs: list[_Tensor]


_read_request = msgspec.msgpack.Decoder(_Request).decode
_read_responses = msgspec.msgpack.Decoder(list[_Response]).decode


def encode_request(request: InferenceRequest) -> list[Buffer]:
    """In parts, which view the request's tensors. Sequence, trace and devices are not kept."""
    header = _Request(
        request.model_name,
        request.model_version,
        request.id,
        request.requested_outputs,
        request.parameters,
        request.priority,
        request.timeout_microseconds,
        _headers(request.inputs),
    )
    return _parts(header, request.inputs)


def decode_request(data: Buffer) -> InferenceRequest:
    """Its tensors view the data. Raises Internal where it is none."""
    try:
        header, rest = _split(data)
        head = _read_request(header)
        return InferenceRequest(
            head.model_name,
            _tensors(head.inputs, rest),
            head.model_version,
            id=head.id,
            requested_outputs=head.requested_outputs,
            parameters=head.parameters,
            priority=head.priority,
            timeout_microseconds=head.timeout_microseconds,
        )
    except (msgspec.DecodeError, ValueError, KeyError) as error:
        raise Internal(f"the request that was kept cannot be read: {error}") from None


def encode_responses(responses: Sequence[InferenceResponse]) -> list[Buffer]:
    """All responses to one request, in parts, which view their tensors."""
    heads = [
        _Response(
            response.model_name,
            response.model_version,
            response.id,
            response.parameters,
            response.is_final,
            _headers(response.outputs),
        )
        for response in responses
    ]
    return _parts(heads, [tensor for response in responses for tensor in response.outputs])


def decode_responses(data: Buffer) -> list[InferenceResponse]:
    """Their tensors view the data. Raises Internal where it is none."""
    try:
        header, rest = _split(data)
        heads = _read_responses(header)
        tensors = iter(_tensors([each for head in heads for each in head.outputs], rest))
        return [
            InferenceResponse(
                head.model_name,
                head.model_version,
                [next(tensors) for _ in head.outputs],
                id=head.id,
                parameters=head.parameters,
                is_final=head.is_final,
            )
            for head in heads
        ]
    except (msgspec.DecodeError, ValueError, KeyError) as error:
        raise Internal(f"the result that was kept cannot be read: {error}") from None


def _headers(tensors: Sequence[Tensor]) -> list[_Tensor]:
    return [_Tensor(each.name, each.datatype.name, tuple(each.shape), each.byte_size) for each in tensors]


def _parts(header: object, tensors: Sequence[Tensor]) -> list[Buffer]:
    head = msgspec.msgpack.encode(header)
    return [len(head).to_bytes(_LENGTH_BYTES, "little"), head, *(flat(tensor.data) for tensor in tensors)]


def _split(data: Buffer) -> tuple[memoryview, memoryview]:
    view = memoryview(data).toreadonly()
    end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    if end > len(view):
        raise ValueError("its header is cut off")
    return view[_LENGTH_BYTES:end], view[end:]


def _tensors(heads: Sequence[_Tensor], data: memoryview) -> list[Tensor]:
    tensors: list[Tensor] = []
    start = 0
    for head in heads:
        end = start + head.byte_size
        if head.byte_size < 0 or end > len(data):
            raise ValueError(f"tensor '{head.name}' is cut off")
        tensors.append(Tensor(head.name, BY_PROTOCOL_NAME[head.datatype], head.shape, data[start:end]))
        start = end
    if start != len(data):
        raise ValueError(f"{len(data) - start} bytes too many")
    return tensors
