"""What `Create` asks for: cut out of the message, in parts, in another order, and what is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.grpc.codec.jobs import MAX_ITEMS, decode_job
from protocol.proto import message_class


def infer(name: str, size: int = 4) -> Message:
    request: Any = message_class("inference.ModelInferRequest")(model_name=name)
    request.inputs.add(name="IN", datatype="UINT8", shape=[size])
    request.raw_input_contents.append(bytes(size))
    return request  # type: ignore[no-any-return]


def job(*requests: Message, **more: Any) -> bytes:
    wanted: Any = message_class("trioton.CreateJobRequest")(**more)
    for number, request in enumerate(requests):
        wanted.requests.add(custom_id=str(number)).request.CopyFrom(request)
    serialized: bytes = wanted.SerializeToString()
    return serialized


@pytest.mark.parametrize("size", [4, 100_000])
def test_requests_and_what_is_beside_them(size: int) -> None:
    wanted = decode_job(memoryview(job(infer("m", size), infer("n"), metadata={"a": "b"}, timeout={"nanos": 1})))
    assert [(each.request.model_name, each.custom_id) for each in wanted.requests] == [("m", "0"), ("n", "1")]
    assert wanted.requests[0].request.inputs[0].byte_size == size
    assert (dict(wanted.message.metadata), wanted.timeout) == ({"a": "b"}, 1e-9)


def test_a_request_in_parts_and_in_another_order() -> None:
    """As protobuf allows it: fields in any order, and a message as the sum of its parts."""
    first, second = job(infer("m")), job(metadata={"a": "b"})
    assert decode_job(memoryview(second + first)).requests[0].request.model_name == "m"
    one: Any = message_class("trioton.JobRequest")(custom_id="c")
    parts = one.SerializeToString()
    for part in ({"model_name": "m"}, {"id": "7"}):
        parts += message_class("trioton.JobRequest")(request=part).SerializeToString()
    (found,) = decode_job(memoryview(b"\x0a" + bytes([len(parts)]) + parts)).requests
    assert (found.request.model_name, found.request.id, found.custom_id) == ("m", "7", "c")


def test_more_requests_than_are_cut_out() -> None:
    request = infer("m")
    assert len(decode_job(memoryview(job(*[request] * MAX_ITEMS))).requests) == MAX_ITEMS
    with pytest.raises(InvalidArgument, match="'requests': expected 1 to 10000, got 10001"):
        decode_job(memoryview(job(*[request] * (MAX_ITEMS + 1))))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "'requests': expected 1 to 10000, got 0"),
        (job(infer("m"), message_class("inference.ModelInferRequest")(model_version="x")), r"requests\[1\]: failed to"),
        (job(infer("m"), metadata={"a": "x" * 513}), "'metadata': expected at most 16 texts"),
        (job(infer("m"), metadata={str(number): "" for number in range(17)}), "'metadata': expected at most 16 texts"),
        (job(infer("m"), request_id="x" * 513), "'request_id': expected at most 512 characters"),
        (b"\xff", "is not a valid trioton.CreateJobRequest message"),
        (b"\x0a\x02\x0a\x05", "is not a valid trioton"),
        (b"\x0a\x03\x0a\x01\xff", r"requests\[0\]: .*is not a valid inference.ModelInferRequest message"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_job(memoryview(data))
    assert re.search(reason, caught.value.message)


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_is_some_time(seconds: int) -> None:
    wanted = decode_job(memoryview(job(infer("m"), timeout={"seconds": seconds})))
    with pytest.raises(InvalidArgument, match="'timeout': expected more than 0 seconds"):
        _ = wanted.timeout


@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_refused(data: bytes) -> None:
    with suppress(InvalidArgument):
        decode_job(memoryview(data))
