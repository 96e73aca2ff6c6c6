"""Keys of requests and the form of kept responses."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.cache.entry import (
    BadEntry,
    decode_response,
    encode_response,
    files_generation,
    input_bytes,
    request_key,
    version_key,
)
from protocol.datatypes import DataType
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor, encode_bytes_elements

VERSION = version_key("m", 1, b"generation")


def tensor(name: str = "A", shape: tuple[int, ...] = (2, 2), data: bytes = bytes(16)) -> Tensor:
    return Tensor(name, DataType.FP32, shape, data)


def base() -> InferenceRequest:
    return InferenceRequest(
        "m", [tensor("A"), tensor("B", data=bytes(15) + b"x")], parameters={"p": 1}, requested_outputs=("X", "Y")
    )


def changed(**changes: object) -> InferenceRequest:
    return msgspec.structs.replace(base(), **changes)


def test_equal_requests_have_equal_keys() -> None:
    assert request_key(VERSION, base()) == request_key(VERSION, base())
    assert len(request_key(VERSION, base())) == 32


SAME: dict[str, Callable[[], InferenceRequest]] = {
    "id": lambda: changed(id="other"),
    "priority": lambda: changed(priority=3),
    "timeout": lambda: changed(timeout_microseconds=5),
    "order of inputs": lambda: changed(inputs=base().inputs[::-1]),
    "order of parameters": lambda: changed(parameters=dict(reversed(base().parameters.items()))),
    "kind of buffer": lambda: changed(
        inputs=[msgspec.structs.replace(each, data=memoryview(bytearray(each.data))) for each in base().inputs]
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_what_does_not_count(what: str) -> None:
    assert request_key(VERSION, SAME[what]()) == request_key(VERSION, base())


OTHER: dict[str, Callable[[], InferenceRequest]] = {
    "bytes": lambda: changed(inputs=[tensor("A", data=bytes(15) + b"y"), base().inputs[1]]),
    "shape of the same bytes": lambda: changed(inputs=[tensor("A", shape=(4, 1)), base().inputs[1]]),
    "datatype of the same bytes": lambda: changed(
        inputs=[msgspec.structs.replace(tensor("A"), datatype=DataType.INT32), base().inputs[1]]
    ),
    "name": lambda: changed(inputs=[tensor("C"), base().inputs[1]]),
    "inputs swapped": lambda: changed(inputs=[tensor("B"), msgspec.structs.replace(base().inputs[1], name="A")]),
    "fewer inputs": lambda: changed(inputs=[tensor("A")]),
    "an input twice": lambda: changed(inputs=[*base().inputs, tensor("A")]),
    "bytes moved from one input to the next": lambda: changed(
        inputs=[tensor("A", data=bytes(12)), msgspec.structs.replace(base().inputs[1], data=bytes(19) + b"x")]
    ),
    "no parameter": lambda: changed(parameters={}),
    "a parameter more": lambda: changed(parameters={"p": 1, "q": ""}),
    "type of a parameter: bool": lambda: changed(parameters={"p": True}),
    "type of a parameter: float": lambda: changed(parameters={"p": 1.0}),
    "type of a parameter: string": lambda: changed(parameters={"p": "1"}),
    "fewer outputs": lambda: changed(requested_outputs=("X",)),
    "all outputs": lambda: changed(requested_outputs=()),
    "order of outputs": lambda: changed(requested_outputs=("Y", "X")),
    "sequence id": lambda: changed(sequence_id=1),
    "sequence id as text": lambda: changed(sequence_id="1"),
    "sequence start": lambda: changed(sequence_start=True),
    "sequence end": lambda: changed(sequence_end=True),
}


def test_everything_else_counts() -> None:
    """Each change gives a key of its own."""
    keys = {what: request_key(VERSION, made()) for what, made in OTHER.items()}
    keys["nothing"] = request_key(VERSION, base())
    assert len(set(keys.values())) == len(keys)


def test_model_version_and_load_count() -> None:
    keys = {
        request_key(version_key(*parts), base())
        for parts in [("m", 1, b"g"), ("m", 2, b"g"), ("n", 1, b"g"), ("m", 1, b"h"), ("m1", 1, b"g")]
    }
    assert len(keys) == 5


def test_the_generation_of_files() -> None:
    files = (("1/model.py", 5, 10),)
    assert files_generation(files, b"s", {"a": 1, "b": 2}) == files_generation(files, b"s", {"b": 2, "a": 1})
    others = [
        files_generation((("1/model.py", 6, 10),), b"s", {"a": 1, "b": 2}),
        files_generation((("1/model.py", 5, 11),), b"s", {"a": 1, "b": 2}),
        files_generation(files, b"t", {"a": 1, "b": 2}),
        files_generation(files, b"s", {"a": 1, "b": 3}),
    ]
    assert len({*others, files_generation(files, b"s", {"a": 1, "b": 2})}) == 5


def test_input_bytes() -> None:
    assert input_bytes(base()) == 32


TENSORS = st.builds(
    lambda name, array: Tensor.from_numpy(name, array),
    st.text(max_size=5),
    st.one_of(
        st.lists(st.integers(-128, 127), max_size=9).map(lambda values: np.array(values, np.int8)),
        st.lists(st.floats(width=32), max_size=9).map(lambda values: np.array([values], np.float32)),
        st.lists(st.binary(max_size=4), max_size=4).map(lambda values: np.array(values, np.object_)),
    ),
)
PARAMETERS = st.dictionaries(
    st.text(max_size=4),
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(outputs=st.lists(TENSORS, max_size=3), parameters=PARAMETERS)
def test_a_response_comes_back_as_it_was(outputs: list[Tensor], parameters: dict[str, ParameterValue]) -> None:
    entry = encode_response(InferenceResponse("m", 1, outputs, "id", parameters))
    found, found_parameters = decode_response(entry)
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in found] == [
        (t.name, t.datatype, t.shape, bytes(t.data)) for t in outputs
    ]
    assert found_parameters == parameters
    assert [type(value) for value in found_parameters.values()] == [type(value) for value in parameters.values()]


ENTRY = encode_response(
    InferenceResponse("m", 1, [tensor(), Tensor("S", DataType.BYTES, (1,), encode_bytes_elements([b"text"]))])
)


@pytest.mark.parametrize("length", range(len(ENTRY)))
def test_a_cut_entry_is_refused(length: int) -> None:
    with pytest.raises(BadEntry):
        decode_response(ENTRY[:length])


@pytest.mark.parametrize(
    "entry",
    [ENTRY + b"x", b"\xff" * 64, ENTRY.replace(b"FP32", b"FP33"), ENTRY.replace(b"FP32", b"INVA"), b"\x01\0\0\0\x90"],
)
def test_another_entry_is_refused(entry: bytes) -> None:
    with pytest.raises(BadEntry):
        decode_response(entry)
