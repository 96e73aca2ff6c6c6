"""Gathering requests into arrays and scattering arrays into responses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backends.array_batch import Arrays, BatchLayout, Reshape
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Internal, InvalidArgument, Unsupported
from protocol.messages import InferenceRequest, Tensor
from repository.pbtxt import parse_pbtxt
from tests.backends.helpers import answer, objects, request_of

PAIR = """
max_batch_size: {batch}
input [ {{ name: "X" data_type: {type} dims: {dims} }} ]
output [ {{ name: "Y" data_type: {type} dims: {dims} }} ]
"""


def layout_of(config: str, *, text_strings: bool = False, alignment: int = 0) -> BatchLayout:
    parsed = parse_pbtxt(config, source="config.pbtxt")
    return BatchLayout(parsed, version=3, instance="m_0_0", text_strings=text_strings, alignment=alignment)


def pair(data_type: str = "TYPE_FP32", dims: str = "[ -1 ]", batch: int = 8) -> BatchLayout:
    return layout_of(PAIR.format(type=data_type, dims=dims, batch=batch))


def passed_through(layout: BatchLayout, *requests: InferenceRequest) -> list[Arrays]:
    """What each request gets back from a model that returns its input."""
    arrays = [layout.arrays(request) for request in requests]
    joined = layout.joined(arrays)
    responses = layout.responses({"Y": joined["X"]}, requests, layout.rows(arrays))
    return [answer(response) for response in responses]


def filled(datatype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape))
    if datatype is DataType.BYTES:
        return objects(*(bytes([index % 256, 0, 255]) * (index % 3) for index in range(count))).reshape(shape)
    return (np.arange(count) % 7).astype(datatype.dtype).reshape(shape)


@pytest.mark.parametrize("datatype", list(BY_PROTOCOL_NAME.values()), ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("rows", [[1], [2, 1, 3], [0, 2]])
def test_every_request_gets_its_own_rows_back(datatype: DataType, rows: list[int]) -> None:
    layout = pair(datatype.value, "[ 2, -1 ]")
    inputs = [filled(datatype, (count, 2, 3)) for count in rows]
    outputs = passed_through(layout, *(request_of(("X", array)) for array in inputs))
    for given_array, output in zip(inputs, outputs, strict=True):
        assert output["Y"].dtype == given_array.dtype
        np.testing.assert_array_equal(output["Y"], given_array)


@settings(deadline=None)
@given(rows=st.lists(st.integers(0, 4), min_size=1, max_size=6), width=st.integers(0, 3))
def test_splitting_undoes_joining(rows: list[int], width: int) -> None:
    layout = pair(batch=64)
    inputs = [np.random.default_rng(index).random((count, width), dtype=np.float32) for index, count in enumerate(rows)]
    outputs = passed_through(layout, *(request_of(("X", array)) for array in inputs))
    for given_array, output in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(output["Y"], given_array)


def test_one_request_is_not_copied_on_either_side() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    layout, request = pair(), request_of(("X", array))
    joined = layout.joined([layout.arrays(request)])
    assert np.shares_memory(joined["X"], array)
    response = layout.responses({"Y": joined["X"]}, [request], [2])[0]
    assert np.shares_memory(answer(response)["Y"], array)


@pytest.mark.parametrize("count", [1, 2])
def test_missing_rows_repeat_the_last_one(count: int) -> None:
    arrays = [{"A": np.array([[1, 2], [3, 4]]), "B": objects(b"x", b"y").reshape(2, 1)}] * count
    filled = pair().joined(arrays, missing=2)
    assert filled["A"].tolist() == [[1, 2], [3, 4]] * count + [[3, 4], [3, 4]]
    assert filled["B"].tolist() == [[b"x"], [b"y"]] * count + [[b"y"], [b"y"]]


@pytest.mark.parametrize("datatype", [DataType.FP64, DataType.BF16, DataType.BOOL], ids=lambda datatype: datatype.name)
def test_large_joined_arrays_lie_where_the_framework_wants_them(datatype: DataType) -> None:
    layout = layout_of(PAIR.format(type=datatype.value, dims="[ -1 ]", batch=8), alignment=4096)
    arrays = [{"X": filled(datatype, (rows, 70000))} for rows in (2, 1)]
    joined = layout.joined(arrays, missing=1)["X"]
    assert joined.ctypes.data % 4096 == 0
    assert joined.flags.c_contiguous
    expected = [found["X"] for found in arrays] + [arrays[-1]["X"][-1:]]
    np.testing.assert_array_equal(joined, np.concatenate(expected))


def test_responses_of_a_batch_are_views_of_the_models_array() -> None:
    layout, output = pair(), np.arange(6, dtype=np.float32).reshape(3, 2)
    requests = [request_of(("X", output[:1])), request_of(("X", output[1:]))]
    for response in layout.responses({"Y": output}, requests, [1, 2]):
        assert np.shares_memory(answer(response)["Y"], output)


def test_an_unaligned_tensor_is_aligned_for_the_model() -> None:
    array = np.arange(4, dtype=np.float64).reshape(1, 4)
    body = memoryview(b"\0" + array.tobytes())[1:]
    layout = pair("TYPE_FP64")
    joined = layout.joined([layout.arrays(InferenceRequest("m", [Tensor("X", DataType.FP64, (1, 4), body)]))])
    assert joined["X"].flags.aligned
    np.testing.assert_array_equal(joined["X"], array)


def test_without_batching_the_whole_tensor_is_the_response() -> None:
    layout = pair(dims="[ -1, 2 ]", batch=0)
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(passed_through(layout, request_of(("X", array)))[0]["Y"], array)


def test_response_repeats_model_version_and_request_id() -> None:
    layout = pair()
    request = request_of(("X", np.zeros((1, 1), np.float32)), request_id="a7")
    response = layout.responses({"Y": np.zeros((1, 1), np.float32)}, [request], [1])[0]
    assert (response.model_version, response.id) == (3, "a7")


def test_only_requested_outputs_are_answered_per_request() -> None:
    layout = layout_of("""
        max_batch_size: 4
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "A" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """)
    row = np.zeros((1, 1), np.float32)
    requests = [request_of(("X", row), outputs=("B",)), request_of(("X", row)), request_of(("X", row), outputs=("A",))]
    rows = np.arange(3, dtype=np.float32).reshape(3, 1)
    responses = layout.responses({"A": rows, "B": rows + 10, "unknown": rows}, requests, [1, 1, 1])
    named = [{name: float(array[0, 0]) for name, array in answer(response).items()} for response in responses]
    assert named == [{"B": 10.0}, {"A": 1.0, "B": 11.0}, {"A": 2.0}]


RESHAPES = [
    # batch, dims, reshape, shape in the request, shape in the model
    (4, "[ 1 ]", "", (2, 1), (2,)),
    (4, "[ 4 ]", "2, 2", (2, 4), (2, 2, 2)),
    (4, "[ -1, 4 ]", "-1, 2, 2", (2, 3, 4), (2, 3, 2, 2)),
    (4, "[ -1, 2, -1 ]", "2, -1, -1", (1, 3, 2, 5), (1, 2, 3, 5)),
    (0, "[ 4 ]", "1, 4", (4,), (1, 4)),
    (0, "[ -1 ]", "1, -1", (0,), (1, 0)),
]


@pytest.mark.parametrize(("batch", "dims", "reshape", "outside", "inside"), RESHAPES)
def test_reshape_is_applied_on_the_way_in_and_undone_on_the_way_out(
    batch: int, dims: str, reshape: str, outside: tuple[int, ...], inside: tuple[int, ...]
) -> None:
    tensor = f"data_type: TYPE_FP32 dims: {dims} reshape {{ shape: [ {reshape} ] }}"
    layout = layout_of(
        f'max_batch_size: {batch} input [ {{ name: "X" {tensor} }} ] output [ {{ name: "Y" {tensor} }} ]'
    )
    request = request_of(("X", filled(DataType.FP32, outside)))
    assert layout.joined([layout.arrays(request)])["X"].shape == inside
    np.testing.assert_array_equal(passed_through(layout, request)[0]["Y"], filled(DataType.FP32, outside))


def test_reshape_takes_variable_dimensions_pairwise() -> None:
    array = np.zeros((9, 3, 4, 5))
    assert Reshape((-1, 4, -1), (2, -1, 2, -1)).apply(array, 1).shape == (9, 2, 3, 2, 5)


def test_text_strings_are_decoded_and_other_bytes_refused_with_their_place() -> None:
    layout = layout_of(PAIR.format(type="TYPE_STRING", dims="[ -1 ]", batch=4), text_strings=True)
    array = layout.arrays(request_of(("X", objects("é", b"\0x").reshape(1, 2))))["X"]
    assert array.tolist() == [["é", "\0x"]]
    with pytest.raises(InvalidArgument, match=r"input 'X', but element 1 \(3 bytes\) is not valid UTF-8 at byte 2"):
        layout.arrays(request_of(("X", objects(b"fine", b"ab\xff").reshape(1, 2))))


def test_broken_string_elements_are_the_requests_own_error() -> None:
    layout = pair("TYPE_STRING")
    request = InferenceRequest("m", [Tensor("X", DataType.BYTES, (1, 1), b"\x09\0\0\0abc")])
    with pytest.raises(InvalidArgument, match="extends past the end"):
        layout.arrays(request)


def test_more_rows_than_the_model_takes_is_refused() -> None:
    layout = pair(batch=2)
    arrays = [layout.arrays(request_of(("X", np.zeros((2, 1), np.float32))))] * 2
    with pytest.raises(Internal, match="batch size 4 for 'm_0_0', max allowed is 2"):
        layout.rows(arrays)


@pytest.mark.parametrize(
    ("outputs", "kind", "text"),
    [
        ({}, Internal, "model '', output 'Y': the model gave no such output, but: none"),
        ({"Z": np.zeros((2, 2), np.float32)}, Internal, "the model gave no such output, but: Z"),
        ({"Y": np.zeros((2, 2))}, Internal, "expects TYPE_FP32, the model gave TYPE_FP64"),
        ({"Y": np.zeros((2, 2), np.complex64)}, Internal, "expects TYPE_FP32, the model gave numpy dtype complex64"),
        ({"Y": np.zeros((2, 3), np.float32)}, Internal, r"expects shape \[-1, 2\], the model gave \[2, 3\]"),
        ({"Y": np.zeros((2,), np.float32)}, Internal, r"expects shape \[-1, 2\], the model gave \[2\]"),
        ({"Y": np.zeros((), np.float32)}, Internal, r"expects shape \[-1, 2\], the model gave \[\]"),
        (
            {"Y": np.zeros((1, 2), np.float32)},
            Unsupported,
            "failed to split the output tensor 'Y' in responses: expected batch size of at least 2 in model output, "
            "got 1",
        ),
    ],
)
def test_a_model_that_breaks_its_configuration_is_told_how(outputs: Arrays, kind: type[Exception], text: str) -> None:
    request = request_of(("X", np.zeros((2, 2), np.float32)))
    with pytest.raises(kind, match=text):
        pair(dims="[ 2 ]").responses(outputs, [request], [2])


def test_rows_beyond_the_batch_are_dropped() -> None:
    request = request_of(("X", np.zeros((1, 1), np.float32)))
    response = pair().responses({"Y": np.arange(3, dtype=np.float32).reshape(3, 1)}, [request], [1])[0]
    assert answer(response)["Y"].tolist() == [[0.0]]


@pytest.mark.parametrize("order", ["fortran", "strided", "big-endian"])
def test_outputs_in_any_memory_layout_are_sent_row_major_and_little_endian(order: str) -> None:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    given_array = {
        "fortran": np.asfortranarray(array),
        "strided": np.repeat(array, 2, axis=1)[:, ::2],
        "big-endian": array.astype(">f4"),
    }[order]
    requests = [request_of(("X", array[:1])), request_of(("X", array[1:]))]
    responses = pair(dims="[ 2 ]").responses({"Y": given_array}, requests, [1, 2])
    assert b"".join(bytes(response.outputs[0].data) for response in responses) == array.tobytes()


def test_bf16_rows_keep_their_type() -> None:
    array = np.arange(4).astype(ml_dtypes.bfloat16).reshape(2, 2)
    output = passed_through(pair("TYPE_BF16"), request_of(("X", array)))[0]["Y"]
    assert output.dtype == np.dtype(ml_dtypes.bfloat16)


def test_shape_tensors_are_those_of_the_first_and_go_to_all() -> None:
    layout = layout_of(
        """
        max_batch_size: 4 platform: "tensorrt_plan"
        input [ { name: "S" data_type: TYPE_INT32 dims: 2 is_shape_tensor: true }, { name: "X" data_type: TYPE_FP32 dims: 1 } ]
        output [ { name: "T" data_type: TYPE_INT64 dims: 2 is_shape_tensor: true }, { name: "Y" data_type: TYPE_FP32 dims: 1 } ]
        """  # noqa: E501 (as one would write it)
    )
    values, rows = np.array([7, 8], np.int32), [2, 1]
    requests = [request_of(("S", values), ("X", np.full((count, 1), count, np.float32))) for count in rows]
    arrays = [layout.arrays(request) for request in requests]
    assert layout.rows(arrays) == rows
    joined = layout.joined(arrays)
    assert joined["S"].tolist() == [7, 8]
    assert joined["X"].tolist() == [[2], [2], [1]]
    outputs = {"T": np.array([9, 9], np.int64), "Y": joined["X"]}
    for response, count in zip(layout.responses(outputs, requests, rows), rows, strict=True):
        found = answer(response)
        assert found["T"].tolist() == [9, 9]
        assert found["Y"].tolist() == [[count]] * count
    with pytest.raises(Internal, match=r"output 'T': the configuration expects shape \[2\], the model gave \[3\]"):
        layout.responses({**outputs, "T": np.zeros(3, np.int64)}, requests, rows)
