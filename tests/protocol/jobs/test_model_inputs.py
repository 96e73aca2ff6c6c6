"""Values of rows become tensors as a model's metadata says, or are refused by name."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from protocol.errors import InvalidArgument
from protocol.jobs.model_inputs import ModelInputs


def inputs(datatype: str, shape: tuple[int, ...], *, is_batched: bool) -> ModelInputs:
    return ModelInputs("m", [("X", datatype, shape)], is_batched=is_batched)


@pytest.mark.parametrize(
    ("shape", "is_batched", "own", "wanted"),
    [
        ((-1, 16), True, (16,), (1, 16)),
        ((-1, 16), True, (1, 16), (1, 16)),
        ((-1, 16), True, (3, 16), (3, 16)),
        ((-1, 2, 8), True, (16,), (1, 2, 8)),
        ((-1, 2, 8), True, (2, 8), (1, 2, 8)),
        ((-1, 1), True, (), (1, 1)),
        ((-1, -1), True, (5,), (1, 5)),
        ((-1, 3, -1), True, (6,), (1, 3, 2)),
        ((-1,), True, (), (1,)),
        ((16,), False, (16,), (16,)),
        ((-1, 4), False, (2, 4), (2, 4)),
        ((-1, 4), False, (8,), (2, 4)),
        ((1,), False, (), (1,)),
        ((), False, (), ()),
        ((-1,), False, (0,), (0,)),
    ],
)
def test_shapes(shape: tuple[int, ...], is_batched: bool, own: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    tensor = inputs("FP32", shape, is_batched=is_batched).named("X").tensor(np.zeros(own))
    assert tensor.shape == wanted
    assert tensor.as_numpy().shape == wanted


@pytest.mark.parametrize(
    ("shape", "own"), [((-1, 16), (15,)), ((-1, 2, 8), (8, 2)), ((-1, -1, -1), (4,)), ((-1, 0, -1), (4,))]
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], own: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="input 'X': expected a value of shape"):
        inputs("FP32", shape, is_batched=True).named("X").tensor(np.zeros(own))


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("FP32", [1, 2]),
        ("FP16", [1.5, 2.5]),
        ("BF16", np.array([1.5, 2.5], np.float64)),
        ("FP32", np.array([1.5, 2.5], ml_dtypes.bfloat16)),
        ("INT8", np.array([-128, 127], np.int64)),
        ("UINT64", np.array([0, 2**64 - 1], np.uint64)),
        ("INT32", np.array([1, 2], ">i4")),
        ("BOOL", [True, False]),
        ("INT64", np.arange(4)[::2]),
    ],
)
def test_datatypes(datatype: str, value: Any) -> None:
    tensor = inputs(datatype, (-1, 2), is_batched=True).named("X").tensor(value)
    assert tensor.as_numpy().astype(np.float64).tolist() == [np.asarray(value).astype(np.float64).tolist()]


@pytest.mark.parametrize(
    ("datatype", "value", "error"),
    [
        ("INT8", [1, 128], "out of range of datatype INT8, expected -128 to 127"),
        ("UINT8", [-1, 1], "out of range"),
        ("INT32", [1.0, 2.0], "expected elements of datatype INT32, got float64"),
        ("BOOL", [0, 1], "got int64"),
        ("FP32", [True, False], "got bool"),
        ("FP32", ["1", "2"], "got <U1"),
        ("FP32", [[1], [1, 2]], "rows of several lengths"),
        ("BYTES", [1, "x"], "expected texts or bytes, got int"),
        ("BYTES", [["x"], ["y", "z"]], "expected texts or bytes, got list"),
        ("BYTES", ["\udcff", "x"], "half of a surrogate pair"),
    ],
)
def test_values_that_do_not_fit(datatype: str, value: Any, error: str) -> None:
    with pytest.raises(InvalidArgument, match="input 'X'") as raised:
        inputs(datatype, (-1, 2), is_batched=True).named("X").tensor(value)
    assert error in str(raised.value)


@pytest.mark.parametrize("value", ["ä", b"\xc3\xa4", np.str_("ä"), ["ä"], np.array(["ä"]), np.array([b"\xc3\xa4"])])
def test_texts(value: Any) -> None:
    tensor = inputs("BYTES", (-1, 1), is_batched=True).named("X").tensor(value)
    assert tensor.as_numpy().tolist() == [["ä".encode()]]


def test_names() -> None:
    with pytest.raises(InvalidArgument, match="model 'm' has no input 'Y', its inputs are X"):
        inputs("FP32", (1,), is_batched=False).named("Y")
    with pytest.raises(InvalidArgument, match=r"model 'm' has the inputs X \(FP32\); files go whole"):
        inputs("FP32", (1,), is_batched=False).only()
