"""Raw binary requests: the whole body is one input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import DataType
from protocol.errors import PayloadTooLarge, ServerError
from protocol.http.app import HttpApp
from protocol.http.codec.infer import DecodedRequest
from protocol.http.codec.raw_request import decode_raw_request
from protocol.http.settings import HttpSettings
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services

INFER = "/v2/models/echo/infer"
RAW = {"inference-header-content-length": "0"}


def decode(
    body: bytes, *inputs: tuple[str, tuple[int, ...]], has_batch: bool = False, limit: int = 1000
) -> DecodedRequest:
    tensors = tuple(TensorMetadata(f"I{n}", datatype, shape) for n, (datatype, shape) in enumerate(inputs))
    metadata = ModelMetadata("m", ("1",), "p", tensors, ())
    return decode_raw_request(body, metadata, has_batch=has_batch, model_version=3, max_input_size=limit)


@pytest.mark.parametrize(
    ("datatype", "dims", "has_batch", "size", "shape"),
    [
        ("FP32", (4,), False, 16, (4,)),
        ("FP32", (-1, 4), True, 16, (1, 4)),
        ("INT8", (2, -1, 3), False, 24, (2, 4, 3)),
        ("INT16", (-1, -1, 3), True, 12, (1, 2, 3)),
        ("FP64", (-1,), False, 0, (0,)),
        ("BOOL", (), False, 1, ()),
        # What does not come out even is the core's to refuse.
        ("FP32", (4,), False, 15, (4,)),
        ("INT32", (-1, 3), False, 20, (1, 3)),
        ("INT8", (0, -1), False, 5, (0, 0)),
    ],
)
def test_the_shape_follows_from_the_size(
    datatype: str, dims: tuple[int, ...], has_batch: bool, size: int, shape: tuple[int, ...]
) -> None:
    body = bytes(range(size))
    decoded = decode(body, (datatype, dims), has_batch=has_batch)
    (tensor,) = decoded.request.inputs
    assert (tensor.name, tensor.datatype.name, tensor.shape, bytes(tensor.data)) == ("I0", datatype, shape, body)
    assert (decoded.request.model_name, decoded.request.model_version, decoded.placement) == ("m", 3, None)
    assert decoded.encoding.is_binary("any")


@pytest.mark.parametrize(("dims", "has_batch", "shape"), [((1,), False, (1,)), ((-1, 1), True, (1, 1))])
def test_a_string_is_one_element(dims: tuple[int, ...], has_batch: bool, shape: tuple[int, ...]) -> None:
    """The length in front of it is added here."""
    (tensor,) = decode(b"gr\xc3\xb6\xc3\x9fe", ("BYTES", dims), has_batch=has_batch).request.inputs
    assert (tensor.shape, bytes(tensor.data)) == (shape, b"\x07\0\0\0gr\xc3\xb6\xc3\x9fe")


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            [("FP32", (1,)), ("FP32", (1,))],
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
        ),
        ([], "Raw request must only have 1 input (found 1) to be deduced but got 0 inputs in 'm' model configuration"),
        (
            [("FP32", (-1, -1))],
            "The shape of the raw input 'I0' can not be deduced because there are more than one variable-sized "
            "dimension",
        ),
        ([("BYTES", (2,))], "For BYTE datatype raw input 'I0', the model must have input shape [1]"),
        ([("BYTES", (1, 1))], "For BYTE datatype raw input 'I0', the model must have input shape [1]"),
    ],
)
def test_models_that_take_no_raw_request(inputs: Any, text: str) -> None:
    with pytest.raises(ServerError) as caught:
        decode(b"1234", *inputs)
    assert caught.value.message == text


def test_a_body_over_the_limit() -> None:
    decode(bytes(1000), ("INT8", (-1,)))
    with pytest.raises(PayloadTooLarge) as caught:
        decode(bytes(1001), ("INT8", (-1,)))
    assert caught.value.message == (
        "Raw input 'I0' has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


async def infer(core: FakeCore, body: bytes, headers: dict[str, str]) -> Answer:
    return await call(HttpApp(make_services(core), HttpSettings()), "POST", INFER, body, headers)


async def test_raw_both_ways() -> None:
    """Sent without JSON, answered in binary."""
    core = FakeCore()
    array = np.arange(4, dtype=np.float32)
    answer = await infer(core, array.tobytes(), RAW)
    size = int(answer.headers["inference-header-content-length"])
    assert answer.body[size:] == array.tobytes()
    (tensor,) = core.requests[0].inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("IN", DataType.FP32, (1, 4))


async def test_an_empty_body_is_a_raw_request() -> None:
    core = FakeCore(inputs=(TensorMetadata("IN", "FP32", (-1,)),), max_batch_size=0)
    assert (await infer(core, b"", {})).status == 200
    assert core.requests[0].inputs[0].shape == (0,)


async def test_a_raw_request_for_an_unknown_model() -> None:
    answer = await call(HttpApp(make_services(), HttpSettings()), "POST", "/v2/models/none/infer", b"x", RAW)
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'none' is not found")
