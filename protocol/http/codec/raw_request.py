"""Raw binary requests: the whole body is the data of the model's only input; its shape is deduced from the size.

Pure. Such a request is announced by an `Inference-Header-Content-Length` of 0, or by an empty body. Source: reference
section "Raw binary request".
"""

from __future__ import annotations

import math

from protocol.core import ModelMetadata
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import InvalidArgument
from protocol.http.codec.infer import DecodedRequest, OutputEncoding
from protocol.http.errors import BodyTooLarge
from protocol.messages import Buffer, InferenceRequest, Tensor, encode_bytes_elements


def decode_raw_request(
    body: Buffer, metadata: ModelMetadata, *, has_batch: bool, model_version: int, max_input_size: int
) -> DecodedRequest:
    """The request, its batch of size 1 where the model `has_batch`. All outputs come back in binary.

    Raises:
        BodyTooLarge: the body is longer than `max_input_size`.
        InvalidArgument: the model has several inputs, or the shape cannot be told.
    """
    size = len(body)
    if size > max_input_size:
        raise BodyTooLarge(
            f"Raw input{_named(metadata)} has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{max_input_size} bytes. Use --http-max-input-size to increase the limit.",
            "max_input_size",
        )
    if len(metadata.inputs) != 1:
        raise InvalidArgument(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(metadata.inputs)} inputs in "
            f"'{metadata.name}' model configuration"
        )
    (expected,) = metadata.inputs
    datatype = BY_PROTOCOL_NAME[expected.datatype]
    dims = expected.shape[1:] if has_batch else expected.shape
    if datatype is DataType.BYTES:
        if dims != (1,):
            raise InvalidArgument(f"For BYTE datatype raw input '{expected.name}', the model must have input shape [1]")
        shape: tuple[int, ...] = (1,)
        body = encode_bytes_elements([bytes(body)])
    else:
        shape = _deduced_shape(expected.name, dims, size // datatype.itemsize)
    if has_batch:
        shape = (1, *shape)
    tensor = Tensor(expected.name, datatype, shape, memoryview(body).toreadonly())
    request = InferenceRequest(metadata.name, [tensor], model_version)
    return DecodedRequest(request, OutputEncoding(default_binary=True))


def _named(metadata: ModelMetadata) -> str:
    return f" '{metadata.inputs[0].name}'" if len(metadata.inputs) == 1 else ""


def _deduced_shape(name: str, dims: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`dims` with the one dimension filled in that may vary. Where that does not come out even, the core finds that
    shape and data differ in size, and says so."""
    if dims.count(-1) > 1:
        raise InvalidArgument(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one "
            f"variable-sized dimension"
        )
    fixed = math.prod(dimension for dimension in dims if dimension != -1)
    variable = count // fixed if fixed else 0
    return tuple(variable if dimension == -1 else dimension for dimension in dims)
