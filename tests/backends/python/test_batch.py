"""Batches as frames: against the worker's own codec, and against garbage."""

from __future__ import annotations

import json
import socket
from array import array
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from backends.interface import Rescheduled
from backends.python.batch import Outcome, decode_responses, encode_batch
from backends.python.heads import ExecutedHead
from backends.python.wire import BrokenFrame, Frame
from backends.python.worker.trioton_worker import batch as worker_batch
from backends.python.worker.trioton_worker import connection as worker_connection
from backends.python.worker.trioton_worker import requests as worker_requests
from backends.python.worker.trioton_worker import responses as worker_responses
from backends.python.worker.trioton_worker import session as worker_session
from backends.python.worker.trioton_worker import tensors as worker_tensors
from backends.python.worker.trioton_worker.frames import ALIGNMENT, EXECUTED, PREFIX
from protocol.datatypes import DataType
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor

OUTPUTS = frozenset({"OUT"})
REQUEST = InferenceRequest("m", [], id="7")


def given_memory(memory: memoryview | None, size: int) -> memoryview | None:
    return memory


def no_memory(_: int) -> None:
    return None


def received(requests: list[InferenceRequest]) -> list[worker_requests.InferenceRequest]:
    """What the worker makes of a batch that crosses in a frame."""
    encoded = encode_batch(requests, OUTPUTS, about_batch={"batch": 1}, input_memory=no_memory, unsent=list)
    _, kind, column_size, head_size, body_size = PREFIX.unpack_from(encoded.start)
    column_end = PREFIX.size + column_size
    assert len(encoded.start) == column_end + head_size
    body = b"".join(bytes(part) for part in encoded.body)
    assert len(body) == body_size
    frame = worker_connection.Frame(
        kind,
        memoryview(encoded.start)[PREFIX.size : column_end].cast("q").tolist(),
        json.loads(encoded.start[column_end:]),
        np.frombuffer(bytearray(body), np.uint8),
    )
    return worker_batch.Batch(frame, worker_batch.Segments(), unconnected(), OUTPUTS).requests


def unconnected() -> worker_session.Session:
    """A worker's session whose connection is closed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return worker_session.Session(worker_connection.Connection(theirs))


def test_requests_arrive_as_they_were_sent() -> None:
    """With inputs of several names and shapes, none, and without elements."""
    arrays: list[NDArray[Any]] = [np.arange(6, dtype=np.int16).reshape(2, 3), np.empty((0, 4)), np.array(True)]
    arrays.append(np.array([[b"a", b""]]))
    sent = [
        InferenceRequest("m", [Tensor.from_numpy(f"T{index % 3}", arrays[index % 4]) for index in range(count)], id=id)
        for count, id in ((4, ""), (0, "x"), (2, "y"))
    ]
    found = received(sent)
    for before, after in zip(sent, found, strict=True):
        assert after.request_id() == before.id
        for one, other in zip(before.inputs, after.inputs(), strict=True):
            assert (other.name(), other.triton_dtype(), tuple(other.shape())) == (
                one.name,
                one.datatype.number,
                one.shape,
            )
            np.testing.assert_array_equal(other.as_numpy(), one.as_numpy())
            assert other.as_numpy().flags.aligned


def test_a_tensor_over_any_buffer_can_be_sent() -> None:
    data = np.arange(4, dtype=np.int32)
    buffers: tuple[Buffer, ...] = (data.tobytes(), bytearray(data.tobytes()), data.data, data.reshape(2, 2).data)
    for buffer in buffers:
        for memory in (None, memoryview(bytearray(ALIGNMENT))):
            request = InferenceRequest("m", [Tensor("IN", DataType.INT32, (4,), buffer)])
            encoded = encode_batch(
                [request], OUTPUTS, about_batch={}, input_memory=partial(given_memory, memory), unsent=list
            )
            sent = b"".join(bytes(part) for part in encoded.body) if memory is None else bytes(memory)
            assert sent[:16] == data.tobytes()


def answered(
    responses: list[worker_responses.InferenceResponse], requests: list[InferenceRequest]
) -> list[Outcome | None]:
    """What the server makes of a worker's answer that crosses in a frame."""
    answer = worker_batch.Answer(responses, received(requests))
    body, _ = answer.place(worker_batch.Segments(), can_share=False)
    column = memoryview(array("q", answer.column)).cast("B")
    head = worker_connection.encode_json(answer.head)
    frame = Frame(EXECUTED, column, memoryview(head), memoryview(b"".join(body)))
    return decode(frame, ExecutedHead(1, **answer.head), requests)


def decode(
    frame: Frame, head: ExecutedHead, requests: list[InferenceRequest], memory: memoryview | None = None
) -> list[Outcome | None]:
    return decode_responses(frame, head, requests, model_name="m", model_version=2, output_memory=memory)


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4), min_size=1, max_size=4))
def test_bytes_tensors_come_back(texts: list[list[bytes]]) -> None:
    responses = [
        worker_responses.InferenceResponse([worker_tensors.Tensor("OUT", np.array(text, dtype=object))])
        for text in texts
    ]
    for text, response in zip(texts, answered(responses, [REQUEST] * len(texts)), strict=True):
        assert isinstance(response, InferenceResponse)
        assert response.outputs[0].as_numpy().tolist() == text


def numbers_frame(numbers: list[int], body: bytes = bytes(64)) -> Frame:
    return Frame(EXECUTED, memoryview(array("q", numbers)).cast("B"), memoryview(b""), memoryview(body))


GOOD = [1, 0, DataType.FP32.number, 0, 8, 2, 1, 2]


def test_the_good_frame_is_good() -> None:
    """What the broken ones below are made from; from the body and from shared memory, which is copied."""
    [response] = decode(numbers_frame(GOOD), ExecutedHead(1, names=["OUT"]), [REQUEST])
    assert isinstance(response, InferenceResponse)
    assert (response.id, response.model_version, response.outputs[0].shape) == ("7", 2, (1, 2))
    memory = bytearray(64)
    [response] = decode(
        numbers_frame(GOOD, b""), ExecutedHead(1, names=["OUT"], shared=8), [REQUEST], memoryview(memory)
    )
    memory[:8] = b"\xff" * 8
    assert isinstance(response, InferenceResponse)
    assert bytes(response.outputs[0].data) == bytes(8)


def changed(position: int, value: int) -> list[int]:
    return [*GOOD[:position], value, *GOOD[position + 1 :]]


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        GOOD[:-1],
        [*GOOD, 0],
        changed(0, 0),
        changed(0, 2),
        changed(0, -1),
        changed(0, -4),
        changed(1, 1),
        changed(1, -1),
        changed(2, 0),
        changed(2, 15),
        changed(2, DataType.FP64.number),
        changed(3, 57),
        changed(3, -1),
        changed(3, 1 << 62),
        changed(4, 7),
        changed(4, -8),
        changed(5, -1),
        changed(5, 1),
        changed(5, 1 << 62),
        changed(6, -1),
        changed(7, 1 << 62),
        [1, 0, DataType.FP32.number, 0, 8, 2, -1, -2],
        [1, 0, DataType.FP32.number, 0, 0, 65, *([1 << 62] * 64), 0],
        [1, 0, DataType.BYTES.number, 0, 7, 1, 1],
        [1, 0, DataType.BYTES.number, 0, 8, 1, 1],
    ],
)
def test_numbers_that_contradict_themselves_are_refused(numbers: list[int]) -> None:
    with pytest.raises(BrokenFrame):
        decode(numbers_frame(numbers), ExecutedHead(1, names=["OUT"]), [REQUEST])


@pytest.mark.parametrize(
    "head",
    [
        {"names": []},
        {"names": ["OUT"], "shared": 8},
        {"names": ["OUT"], "parameters": [(1, {})]},
        {"names": ["OUT"], "errors": [(-1, 0, "x")]},
    ],
)
def test_heads_that_do_not_fit_are_refused(head: dict[str, Any]) -> None:
    with pytest.raises(BrokenFrame):
        decode(numbers_frame(GOOD), ExecutedHead(1, **head), [REQUEST])


def test_an_error_needs_a_known_kind() -> None:
    for code in (-1, 8):
        with pytest.raises(BrokenFrame):
            decode(numbers_frame([-1]), ExecutedHead(1, errors=[(0, code, "x")]), [REQUEST])


@given(st.lists(st.one_of(st.integers(-3, 20), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=40), st.integers(0, 4))
def test_any_numbers_are_sound_or_refused(numbers: list[int], count: int) -> None:
    """Nothing but BrokenFrame comes out, and no tensor whose data is not what it says."""
    try:
        responses = decode(numbers_frame(numbers), ExecutedHead(1, names=["A", "B"]), [REQUEST] * count)
    except BrokenFrame:
        return
    assert len(responses) == count
    for response in responses:
        if response is None or isinstance(response, Rescheduled):
            continue
        assert isinstance(response, InferenceResponse)
        for tensor in response.outputs:
            assert tensor.as_numpy().shape == tensor.shape
