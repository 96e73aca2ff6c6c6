"""Batches as frames: against the worker's own codec, and against garbage."""

from __future__ import annotations

import json
import socket
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from backends.interface import Rescheduled
from backends.python.batches.codec import Executed, Outcome, decode_executed, decode_responses, encode_batch
from backends.python.wire.frames import BrokenFrame, Frame, FrameReader
from backends.python.wire.heads import ExecutedHead
from backends.python.wire.schemas import Schemas
from backends.python.wire.tensor_columns import EncodedFrame, SharedMemory, column_of
from backends.python.worker.trioton_worker import batch as worker_batch
from backends.python.worker.trioton_worker import connection as worker_connection
from backends.python.worker.trioton_worker import requests as worker_requests
from backends.python.worker.trioton_worker import responses as worker_responses
from backends.python.worker.trioton_worker import schemas as worker_schemas
from backends.python.worker.trioton_worker import session as worker_session
from backends.python.worker.trioton_worker import tensors as worker_tensors
from backends.python.worker.trioton_worker.frames import ALIGNMENT, ERROR, EXECUTE, EXECUTED, MOST_SCHEMAS, PREFIX
from backends.python.worker.trioton_worker.records import RequestHeader, RequestRecord
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.shared_tensor import shared_tensor
from tests.backends.python.models import ClientMemory

OUTPUTS = frozenset({"OUT"})
REQUEST = InferenceRequest("m", [], id="7")


def records(requests: list[InferenceRequest]) -> list[RequestRecord]:
    """What the worker makes of a batch that crosses in a frame."""
    encoded = encode(requests)
    _, kind, column_size, schemas_size, head_size, body_size = PREFIX.unpack_from(encoded.start)
    column_end = PREFIX.size + column_size
    head_start = column_end + schemas_size
    head = encoded.start[head_start : head_start + head_size]
    body = b"".join(bytes(part) for part in encoded.body)
    assert len(body) == encoded.body_size == body_size
    frame = worker_connection.Frame(
        kind,
        memoryview(encoded.start)[PREFIX.size : column_end].cast("q").tolist(),
        encoded.start[column_end:head_start],
        json.loads(head) if head else {},
        np.frombuffer(bytearray(body), np.uint8),
    )
    batch = worker_session.LiveBatch(unconnected(), *frame.column[:3])
    return worker_batch.received_requests(frame, worker_batch.Segments(), batch, RequestHeader(OUTPUTS))


def received(requests: list[InferenceRequest]) -> list[worker_requests.InferenceRequest]:
    """As the model gets them."""
    return worker_requests.model_requests(records(requests))


def encode(requests: list[InferenceRequest]) -> EncodedFrame:
    return encode_batch(
        1, requests, column_of([request.inputs for request in requests], Schemas()), OUTPUTS, about_batch={}
    )


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
            column = column_of([request.inputs], Schemas())
            if memory is None:
                sent = b"".join(bytes(part) for part in column.frame(EXECUTE, {}).body)
            else:
                column.copy_to(memory)
                sent = bytes(memory)
            assert sent[:16] == data.tobytes()


def test_a_tensor_in_a_clients_memory_can_be_sent() -> None:
    """Read into the segment, or into the frame."""
    numbers = np.arange(4, dtype=np.int32)
    tensors = [Tensor("A", DataType.UINT8, (3,), b"abc"), ClientMemory.tensor("B", numbers)]
    column = column_of([tensors], Schemas())
    expected = b"abc".ljust(ALIGNMENT, b"\0") + numbers.tobytes().ljust(ALIGNMENT, b"\0")
    memory = memoryview(bytearray(2 * ALIGNMENT))
    column.copy_to(memory)
    assert bytes(memory) == b"".join(column.frame(EXECUTE, {}).body) == expected
    flat = column_of([[*tensors, Tensor("C", DataType.INT32, (1, 1), np.zeros((1, 1), np.int32).data)]], Schemas())
    flat.copy_to(memoryview(bytearray(3 * ALIGNMENT)))
    with pytest.raises(Internal, match="not as many bytes"):
        column_of([[shared_tensor("B", DataType.INT32, (5,), ClientMemory(numbers))]], Schemas())


@pytest.mark.parametrize("data", [bytes(8), bytes(20), np.array(1, np.int32).data])
def test_a_tensor_that_has_not_the_bytes_it_needs_is_refused(data: Buffer) -> None:
    """It would be read from those of its neighbours."""
    good = InferenceRequest("m", [Tensor("IN", DataType.INT32, (4,), bytes(16))])
    with pytest.raises(Internal, match="not as many bytes"):
        encode([good, InferenceRequest("m", [Tensor("IN", DataType.INT32, (4,), data)])])


def answered(
    responses: list[worker_responses.InferenceResponse], requests: list[InferenceRequest]
) -> list[Outcome | None]:
    """What the server makes of a worker's answer that crosses in a frame."""
    asked = records(requests)
    answer = worker_batch.Answer(responses, asked, worker_schemas.Schemas())
    batch = worker_session.LiveBatch(unconnected(), 1)
    frame = FrameReader().next_frame(bytes(answer.frame(batch, worker_batch.Segments(), can_share=False)))
    assert frame is not None
    return decode(decode_executed(frame), requests)


def executed(
    runs: list[int],
    schemas: bytes,
    body: bytes = b"",
    head: ExecutedHead | None = None,
    *,
    shared: int = 0,
    places: Sequence[int] = (),
) -> Executed:
    column = memoryview(array("q", [1, 0, shared, len(places) // 2, *places, *runs])).cast("B")
    found = decode_executed(Frame(EXECUTED, column, memoryview(schemas), memoryview(b""), memoryview(body)))
    found.head = head or ExecutedHead()
    return found


def decode(
    found: Executed,
    requests: list[InferenceRequest],
    outputs: SharedMemory | None = None,
    inputs: SharedMemory | None = None,
) -> list[Outcome | None]:
    return decode_responses(
        found,
        requests,
        schemas=Schemas(),
        model_name="m",
        model_version=2,
        outputs=outputs,
        inputs=inputs,
    )


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4), min_size=1, max_size=4))
def test_bytes_tensors_come_back(texts: list[list[bytes]]) -> None:
    responses = [
        worker_responses.InferenceResponse([worker_tensors.Tensor("OUT", np.array(text, dtype=object))])
        for text in texts
    ]
    for text, response in zip(texts, answered(responses, [REQUEST] * len(texts)), strict=True):
        assert isinstance(response, InferenceResponse)
        assert response.outputs[0].as_numpy().tolist() == text


SCHEMA = b'[["OUT",11,[1,2]]]'
GOOD = [len(SCHEMA), 1]
OUTPUT_MEMORY = SharedMemory(memoryview(bytes(64)), is_lent=True)


def test_the_good_frame_is_good() -> None:
    """What the broken ones below are made from; from the body and from shared memory, which is copied if it is not
    lent."""
    [response] = decode(executed(GOOD, SCHEMA, bytes(64)), [REQUEST])
    assert isinstance(response, InferenceResponse)
    assert (response.id, response.model_version, response.outputs[0].shape) == ("7", 2, (1, 2))
    for is_lent, expected in ((False, bytes(8)), (True, b"\xff" * 8)):
        memory = bytearray(64)
        [response] = decode(executed(GOOD, SCHEMA, shared=8), [REQUEST], SharedMemory(memoryview(memory), is_lent))
        memory[:8] = b"\xff" * 8
        assert isinstance(response, InferenceResponse)
        assert bytes(response.outputs[0].data) == expected


@pytest.mark.parametrize("is_lent", [False, True])
def test_strings_in_shared_memory_are_those_that_were_looked_at(is_lent: bool) -> None:
    schema = b'[["OUT",13,[1]],["MORE",2,[2]]]'
    memory = bytearray(b"\1\0\0\0a" + bytes(123))
    lent = SharedMemory(memoryview(memory), is_lent)
    [response] = decode(executed([len(schema), 1, 5], schema, shared=66), [REQUEST], lent)
    memory[:] = b"\xff" * 128
    assert isinstance(response, InferenceResponse)
    assert response.outputs[0].as_numpy().tolist() == [b"a"]
    assert response.outputs[1].as_numpy().tolist() == ([255, 255] if is_lent else [0, 0])


@pytest.mark.parametrize(
    ("places", "expected"),
    [([], b"\1"), ([0, 64], b"\2"), ([64, 0], b"\1"), ([0, 120], b"\2"), ([64, 0, 0, 64], b"\2")],
)
def test_an_output_may_lie_among_the_inputs(places: list[int], expected: bytes) -> None:
    """It is copied, where the next batch writes there. Where the model keeps inputs, it lies in its own segment."""
    outputs, inputs = bytearray(b"\1" * 64), bytearray(b"\2" * 128)
    found = executed(GOOD, SCHEMA, shared=8, places=places)
    answers = []
    for found.is_kept in (False, True):
        memory = [SharedMemory(memoryview(each), is_lent=False) for each in (outputs, inputs)]
        answers += decode(found, [REQUEST], *memory)
    outputs[:], inputs[:] = bytes(64), bytes(128)
    data = [bytes(answer.outputs[0].data) for answer in answers if isinstance(answer, InferenceResponse)]
    assert data == [expected * 8, b"\1" * 8]


@pytest.mark.parametrize("place", [-1, -8, 121, 1 << 62])
def test_an_output_that_does_not_lie_among_the_inputs_is_refused(place: int) -> None:
    found = executed(GOOD, SCHEMA, shared=8, places=[0, place])
    with pytest.raises(BrokenFrame, match="among the inputs"):
        decode(found, [REQUEST], OUTPUT_MEMORY, SharedMemory(memoryview(bytes(128)), is_lent=True))
    with pytest.raises(BrokenFrame, match="shared memory that it does not have"):
        decode(found, [REQUEST], OUTPUT_MEMORY)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        GOOD[:-1],
        [*GOOD, 0],
        [*GOOD, *GOOD],
        [len(SCHEMA), 0],
        [len(SCHEMA), 2],
        [len(SCHEMA), -1],
        [len(SCHEMA), 1 << 62],
        [len(SCHEMA) + 1, 1],
        [len(SCHEMA) - 1, 1],
        [0, 1],
        [-4, 1],
        [-(1 << 62), 1],
    ],
)
def test_runs_that_contradict_themselves_are_refused(runs: list[int]) -> None:
    with pytest.raises(BrokenFrame):
        decode(executed(runs, SCHEMA, bytes(64)), [REQUEST])


@pytest.mark.parametrize("shared", [0, 8])
@pytest.mark.parametrize(
    "schema",
    [
        b"",
        b"{}",
        b"[1]",
        b"[[]]",
        b'[["OUT",11]]',
        b'[["OUT",0,[1]]]',
        b'[["OUT",15,[1]]]',
        b'[["OUT",12,[1,9]]]',
        b'[["OUT",11,[17]]]',
        b'[["OUT",11,[-1]]]',
        b'[["OUT",11,[-1,-2]]]',
        b'[["OUT",11,[4611686018427387904]]]',
        b'[["OUT",11,[1e3]]]',
        b'[["OUT",11,[0%s]]]' % (b",1" * 64),
        b'[["\xff",11,[1]]]',
        b'[["OUT",13,[1]]]',
        b"[" * 100_000,
    ],
)
def test_schemas_that_cannot_be_are_refused(schema: bytes, shared: int) -> None:
    with pytest.raises(BrokenFrame):
        decode(executed([len(schema), 1], schema, bytes(64), shared=shared), [REQUEST], OUTPUT_MEMORY)


@pytest.mark.parametrize("size", [-1, 3, 4, 6, 8, 65, 1 << 62])
def test_bytes_tensors_that_do_not_hold_their_elements_are_refused(size: int) -> None:
    schema = b'[["OUT",13,[1]]]'
    body = b"\1\0\0\0a" + bytes(59)
    assert decode(executed([len(schema), 1, 5], schema, body), [REQUEST])
    with pytest.raises(BrokenFrame):
        decode(executed([len(schema), 1, size], schema, body), [REQUEST])


@pytest.mark.parametrize(("head", "shared"), [({}, 8), ({"parameters": [(1, {})]}, 0), ({"errors": [(-1, 0, "x")]}, 0)])
def test_heads_that_do_not_fit_are_refused(head: dict[str, Any], shared: int) -> None:
    with pytest.raises(BrokenFrame):
        decode(executed(GOOD, SCHEMA, bytes(64), ExecutedHead(**head), shared=shared), [REQUEST])


@pytest.mark.parametrize(
    "numbers", [[], [1, 0, 0], [1, 0, 0, 1], [1, 0, 8, 1, 0], [1, 0, 8, -1, 0, 0], [1, 0, 8, 1 << 62, 0, 0]]
)
def test_an_answer_says_whose_it_is_and_where_its_runs_begin(numbers: list[int]) -> None:
    column = memoryview(array("q", numbers)).cast("B")
    with pytest.raises(BrokenFrame, match="too few for what they announce"):
        decode_executed(Frame(EXECUTED, column, memoryview(b""), memoryview(b""), memoryview(b"")))


def test_schemas_are_known_again_and_forgotten_when_there_are_too_many() -> None:
    schemas = Schemas()
    assert schemas.by_text[SCHEMA] is schemas.by_text[SCHEMA]
    key = (("OUT", DataType.FP32, (1, 2)),)
    first = schemas.by_key[key]
    assert first.data == SCHEMA
    assert schemas.by_key[key] is first
    for size in range(MOST_SCHEMAS):
        assert schemas.by_key[(("OUT", DataType.FP32, (size,)),)]
    assert schemas.by_key[key] is not first
    assert len(schemas.by_key) <= MOST_SCHEMAS


def test_an_error_needs_a_known_kind() -> None:
    for code in (-1, 8):
        with pytest.raises(BrokenFrame):
            decode(executed([ERROR, 1], b"", head=ExecutedHead([(0, code, "x")])), [REQUEST])


NUMBERS = st.one_of(st.integers(-3, 20), st.integers(-(1 << 63), (1 << 63) - 1))
SOUND_FORMS = st.lists(
    st.tuples(st.sampled_from("AB"), st.integers(1, 14), st.lists(st.integers(0, 3), max_size=3)), max_size=2
).map(worker_connection.encode_json)


@given(st.lists(st.one_of(SOUND_FORMS, NUMBERS), max_size=6), st.integers(0, 4), st.binary(max_size=256))
def test_anything_is_sound_or_refused(runs: list[bytes | int], count: int, body: bytes) -> None:
    """Nothing but BrokenFrame comes out, and no tensor whose data is not what it says."""
    numbers = [len(item) if isinstance(item, bytes) else item for item in runs]
    schemas = b"".join(item for item in runs if isinstance(item, bytes))
    try:
        responses = decode(executed(numbers, schemas, body), [REQUEST] * count)
    except BrokenFrame:
        return
    assert len(responses) == count
    for response in responses:
        if response is None or isinstance(response, Rescheduled):
            continue
        assert isinstance(response, InferenceResponse)
        for tensor in response.outputs:
            assert tensor.as_numpy().shape == tensor.shape
