"""Long JSON of the generate extension, in slices: as the codec that reads and writes all in one go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.http.codec import long_answer, long_arrays, long_generate, packed_data
from protocol.http.codec.generate import decode_generate_request, encode_generate_response
from protocol.http.codec.long_arrays import WINDOW
from protocol.http.codec.long_generate import decode_long_generate, encode_long_generate, is_long
from protocol.messages import InferenceResponse, Tensor, encode_bytes_elements
from tests.protocol.http.codec.test_long_infer import steps
from tests.sliced import finished

LIMIT = 1 << 24
INPUTS = (("IN", "FP32", (-1,)), ("N", "INT64", (-1, 2)), ("TEXT", "BYTES", (-1,)))
METADATA = ModelMetadata("m", ("1",), "p", tuple(TensorMetadata(*tensor) for tensor in INPUTS), ())


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_arrays, "WINDOW", 16)
        patch.setattr(long_arrays, "LONG_ABOVE", 4)
        patch.setattr(long_arrays, "_LARGEST_WINDOW", 256)
        patch.setattr(packed_data, "_STRING_PART", 8)
        patch.setattr(long_answer, "PIECE", 3)
        patch.setattr(long_generate, "LONG_ABOVE", 4)
        yield


def read(body: bytes, *, in_slices: bool) -> Any:
    """None where it is left to the other."""
    limits: dict[str, int] = {"model_version": 1, "max_input_size": LIMIT}
    try:
        if in_slices:
            request = finished(decode_long_generate(body, METADATA, **limits))
            if request is None:
                return None
        else:
            request = decode_generate_request(body, METADATA, **limits)
    except ServerError as error:
        return type(error), error.message
    inputs = [(each.name, each.datatype, each.shape, bytes(each.data)) for each in request.inputs]
    return inputs, request.id, request.parameters


def checked(body: bytes) -> None:
    """It must not be left to the other."""
    assert read(body, in_slices=True) == read(body, in_slices=False)


MEMBERS = {
    "IN": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-9, 9), min_size=6),
    "N": st.lists(st.integers(-(2**63), 2**63), min_size=6),
    "TEXT": st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=3),
    "id": st.text(max_size=5),
    "other": st.integers() | st.booleans() | st.text(max_size=5),
    "long": st.lists(st.integers(), min_size=6),
}


@given(st.data())
def test_any_request(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([*MEMBERS]), unique=True, min_size=1))
    members = {name: data.draw(MEMBERS[name]) for name in names}
    inner = data.draw(st.integers(0, len(names)))
    if inner:
        members = {**dict([*members.items()][inner:]), "parameters": dict([*members.items()][:inner])}
    body = json.dumps(members, ensure_ascii=False).encode()
    found = read(body, in_slices=True)
    assert found is None or found == read(body, in_slices=False)


@pytest.mark.parametrize(
    "body",
    [
        b'{"IN": [1.5, 2.5, 3.5, 4.5, 5.5]}',
        b'{"parameters": {"IN": [1.5, 2.5, 3.5, 4.5, 5.5], "a": 3}, "id": "x", "N": [1, 2, 3, 4, 5, 6]}',
        b'{"IN": [1.5, 2.5, 3.5, 4.5, 5.5], "IN": [1]}',
        b'{"IN": [1.5, 2.5, 3.5], "TEXT": ["IN", "parameters", "IN"]}',
        b'{"N": [1, 2, 3, 4, 5]}',
        b'{"IN": [[1.5, 2.5], [3.5, 4.5, 5.5]]}',
        b'{"IN": [1.5, 2.5, "x", {"y": 3}]}',
        b'{"TEXT": ["a\\"b\\\\", "c, d]", "\\u00e9\\ud83d\\ude00"]}',
        b'{"unknown": [1.5, 2.5, 3.5, 4.5, 5.5]}',
        b'{"unknown": {"inner": [1.5, 2.5, 3.5, 4.5, 5.5]}}',
        b'{"IN": [1.5, 2.5, 3.5, 4.5, 5.5,]}',
        b'{"IN": [1.5, 2.5, 3.5 4.5, 5.5]}',
        b'{"IN": [1.5, 2.5, 3.5, 4.5, 5.5]}}]}',
        b'{"IN": [1.5, 2.5, 3.5, 4.5, 5.5], "id": 7}',
        b'[{"IN": [1.5, 2.5, 3.5, 4.5, 5.5]}]',
    ],
)
def test_what_comes_out_and_what_is_refused_is_the_same(body: bytes) -> None:
    checked(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": [1.5, 2.5, 3.5, 4.5]}',
        b'{"parameters": [1.5, 2.5, 3.5, 4.5]}',
        b'{"IN": 3}',
        b'{"IN": [1e999, 1, 2, 3]}',
    ],
)
def test_what_is_told_by_its_text_is_left_to_who_reads_all(body: bytes) -> None:
    assert read(body, in_slices=True) is None


@pytest.mark.parametrize("name", ["IN", "other"])
def test_a_slice_has_a_bounded_share_of_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_arrays, "WINDOW", WINDOW)
    body = b'{"%b": [%b0]}' % (name.encode(), b"1," * (1 << 19))
    taken = 0
    work = decode_long_generate(body, METADATA, model_version=1, max_input_size=LIMIT)
    try:
        while True:
            next(work)
            taken += 1
    except (StopIteration, ServerError):
        pass
    assert taken >= 2 * len(body) / WINDOW, "of the scan, and of parsing"


NAMES = st.sampled_from(["a", "n", "z", "model_name"])
TENSORS = st.one_of(
    st.lists(st.floats(width=32) | st.just(float("inf"))).map(
        lambda values: ("FP32", np.array(values, np.float32).tobytes(), len(values))
    ),
    st.lists(st.integers(-9, 9)).map(lambda values: ("INT64", np.array(values, np.int64).tobytes(), len(values))),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=9)).map(
        lambda values: ("BYTES", encode_bytes_elements(values), len(values))
    ),
)


@given(st.dictionaries(NAMES, TENSORS, max_size=3))
@example({"a": ("INT64", np.arange(100).tobytes(), 100), "z": ("INT64", np.arange(7).tobytes(), 7)})
def test_any_answer(tensors: dict[str, tuple[str, bytes, int]]) -> None:
    outputs = [Tensor(name, DataType[datatype], (count,), data) for name, (datatype, data, count) in tensors.items()]
    response = InferenceResponse("m", 1, outputs, "id")
    assert b"".join(finished(encode_long_generate(response))) == encode_generate_response(response)
    assert is_long(response) == (sum(tensor.byte_size for tensor in outputs) > 4)


def test_a_long_answer_is_written_in_pieces() -> None:
    response = InferenceResponse("m", 1, [Tensor("a", DataType.INT64, (300,), np.arange(300).tobytes())], "id")
    assert steps(encode_long_generate(response)) >= 100
