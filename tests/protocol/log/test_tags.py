"""Tags of requests, and of the batches that they are in."""

from __future__ import annotations

from protocol.log.call_origin import CallOrigin
from protocol.log.request_ids import ClientIds, RequestIds
from protocol.log.tags import tags_of, tags_of_batch
from protocol.messages import InferenceRequest

IDS = RequestIds()


def request(name: str) -> InferenceRequest:
    origin = CallOrigin(IDS, ClientIds(name.encode(), b"a" * 32, b"b" * 16), lambda: "alice")
    return InferenceRequest("m", [], origin=origin)


def test_one_request() -> None:
    tags = {"request_id": "one", "trace_id": "a" * 32, "span_id": "b" * 16, "key": "alice"}
    assert tags_of_batch([request("one")]) == tags
    assert tags_of(request("one")) == {**tags, "model": "m"}
    assert tags_of_batch([InferenceRequest("m", [], id="own")]) == {"request_id": "own"}


def test_the_first_of_several_requests_are_named() -> None:
    few = tags_of_batch([request("one"), request("two")])
    assert few == {"request_ids": ("one", "two"), "request_count": 2}
    many = tags_of_batch([request(str(number)) for number in range(100)])
    assert many == {"request_ids": tuple("01234567"), "request_count": 100}


def test_requests_without_ids() -> None:
    assert tags_of_batch([]) == {}
    assert tags_of_batch([InferenceRequest("m", [])]) == {}
    assert tags_of_batch([InferenceRequest("m", []), request("two")]) == {"request_ids": ("two",), "request_count": 2}
