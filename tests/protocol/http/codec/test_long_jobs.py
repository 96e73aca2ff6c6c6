"""Long lists of requests that make a job, read in slices: the same as in one go, or left to that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument, ServerError
from protocol.http.codec import long_arrays
from protocol.http.codec.infer import decode_infer_request
from protocol.http.codec.jobs import MAX_ITEMS, read_job_list, read_listed_request
from protocol.http.codec.long_jobs import read_long_listed, split_long_list
from tests.sliced import finished

LIMIT = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_arrays, "WINDOW", 16)
        patch.setattr(long_arrays, "LONG_ABOVE", 4)
        patch.setattr(long_arrays, "_LARGEST_WINDOW", 256)
        yield


def members(body: bytes) -> Any:
    """In one go."""
    listed = read_job_list(body)
    return [bytes(each) for each in listed.requests], listed.metadata, listed.timeout, listed.webhook


def check_split(body: bytes) -> bool:
    """Returns whether it was split in slices."""
    listed = finished(split_long_list(body))
    if listed is None:
        return False
    requests = [bytes(each).strip() for each in listed.requests]
    assert (requests, listed.metadata, listed.timeout, listed.webhook) == members(body)
    return True


REQUESTS = st.fixed_dictionaries(
    {"model_name": st.text(max_size=5)},
    optional={
        "inputs": st.lists(st.fixed_dictionaries({"data": st.lists(st.integers() | st.text(max_size=9))}), max_size=3),
        "parameters": st.dictionaries(st.text(max_size=4), st.text('"\\,]}[{', max_size=9)),
    },
)
LISTS = st.fixed_dictionaries(
    {"requests": st.lists(REQUESTS, min_size=1, max_size=6)},
    optional={
        "timeout": st.integers(1, 9),
        "metadata": st.dictionaries(st.text(max_size=4), st.text(max_size=9), max_size=3),
        "webhook": st.just({"url": "https://a"}),
        "other": st.lists(st.integers()),
    },
)


@given(LISTS, st.sampled_from([None, 1]))
def test_a_list_is_split_as_in_one_go(given_list: Any, indent: int | None) -> None:
    check_split(json.dumps(given_list, indent=indent).encode())


@given(LISTS, st.integers(0, 300), st.binary(max_size=3), st.integers(0, 2))
def test_one_that_is_broken_anywhere(given_list: Any, place: int, put: bytes, cut: int) -> None:
    body = json.dumps(given_list).encode()
    body = body[:place] + put + body[place + cut :]
    try:
        members(body)
    except InvalidArgument:
        assert finished(split_long_list(body)) is None, "who reads it in one go says what is wrong"
    else:
        check_split(body)


def body_of(requests: str, more: str = "") -> bytes:
    return f'{{"requests": [{requests}]{more}}}'.encode()


ONE = '{"model_name": "a", "inputs": []}'


def test_what_is_split() -> None:
    assert check_split(body_of(",".join([ONE] * 50), ', "timeout": 3'))
    assert check_split(body_of(f"{ONE} , {ONE}"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        body_of(""),
        body_of(f"{ONE},"),
        body_of(f",{ONE}"),
        body_of(f"{ONE},,{ONE}"),
        body_of(f"{ONE}, NaN, {ONE}"),
        body_of(ONE, ', "timeout": 0'),
        body_of(ONE, ', "requests": [1, 2, 3, 4, 5]'),
        body_of("1," * MAX_ITEMS + "1"),
        body_of('{"a": "' + "x" * 1000 + '"}'),  # no window has all of it
        b'{"requests": [1], "other": {"requests": [1, 2, 3, 4, 5]}}',
    ],
)
def test_what_is_not(body: bytes) -> None:
    assert not check_split(body)


def request_outcome(request: bytes, *, in_slices: bool) -> Any:
    try:
        if in_slices:
            found = finished(read_long_listed(msgspec.Raw(request), LIMIT))
            if found is None:
                return None
            named, decoded = found
        else:
            named = read_listed_request(request)
            decoded = decode_infer_request(
                request, None, model_name=named.model_name, model_version=named.version, max_input_size=LIMIT
            )
    except ServerError as error:
        return type(error), error.message
    inputs = [(each.name, each.datatype, each.shape, bytes(each.data)) for each in decoded.request.inputs]
    return named, inputs, decoded.request.model_name, decoded.request.parameters, decoded.encoding


@given(
    st.dictionaries(
        st.sampled_from(["model_name", "model_version", "custom_id"]), st.text(max_size=3) | st.integers(0, 99)
    ),
    st.sampled_from(["FP32", "BYTES", "INT8"]),
    st.lists(st.integers(-200, 200) | st.text(max_size=5), max_size=9),
)
@example({"model_name": "m"}, "FP32", [1, 2, 3, 4, 5])
@example({"model_name": 3}, "FP32", [1, 2, 3, 4, 5])
@example({"model_name": "m"}, "INT8", [1, 2, 3, 4, 500])
def test_a_request_is_read_as_in_one_go(named: dict[str, Any], datatype: str, data: list[Any]) -> None:
    tensor = {"name": "IN", "datatype": datatype, "shape": [len(data)], "data": data}
    request = json.dumps({**named, "inputs": [tensor]}).encode()
    found = request_outcome(request, in_slices=True)
    assert found is None or found == request_outcome(request, in_slices=False)


def test_a_long_request_is_read_in_slices() -> None:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1000], "data": [1] * 1000}
    request = json.dumps({"model_name": "m", "custom_id": "c", "inputs": [tensor]}).encode()
    assert request_outcome(request, in_slices=True)[0].custom_id == "c"
    assert sum(1 for _ in read_long_listed(msgspec.Raw(request), LIMIT)) > 100
