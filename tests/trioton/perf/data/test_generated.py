"""Inputs that are made by a seed."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.datatypes import DataType
from tests.trioton.perf.data.models import slots
from trioton.perf.caller import DataError
from trioton.perf.data import generated
from trioton.perf.data.dataset import Dataset
from trioton.perf.data.generated import LARGEST_INTEGER, Generated
from trioton.perf.data.inputs import TensorSlot, given_shape

DATATYPES = [each for each in DataType if each is not DataType.INVALID]


def raw(dataset: Dataset) -> list[bytes]:
    return [bytes(tensor.data) for step in dataset.steps for tensor in step.tensors.values()]


@pytest.mark.parametrize("is_zero", [False, True])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype(datatype: DataType, is_zero: bool) -> None:
    model = slots(("A", datatype.value.removeprefix("TYPE_"), [3, 4]))
    dataset = Generated(is_zero=is_zero, string_length=7).dataset(model)
    for step in dataset.steps:
        array = step.tensors["A"].as_numpy()
        assert array.shape == (3, 4)
        if datatype is DataType.BYTES:
            assert {len(text) for text in array.reshape(-1)} == {0 if is_zero else 7}
        elif is_zero:
            assert not array.any()
        elif array.dtype.kind in "iu":
            assert array.min() >= 0
            assert array.max() <= LARGEST_INTEGER
        else:
            assert np.isfinite(array.astype(np.float64)).all()


def test_the_seed_decides() -> None:
    model = slots(("A", "FP32", [100]), ("B", "STRING", [2]))
    assert raw(Generated(seed=1).dataset(model)) == raw(Generated(seed=1).dataset(model))
    assert raw(Generated(seed=1).dataset(model)) != raw(Generated(seed=2).dataset(model))
    assert len(set(raw(Generated(seed=1).dataset(model)))) == 32


def test_sizes_from_a_range() -> None:
    shapes = [given_shape("A:1-5,3")]
    sizes = {
        step.tensors["A"].shape for step in Generated(count=64).dataset(slots(("A", "FP32", [-1, 3])), shapes).steps
    }
    assert sizes == {(size, 3) for size in range(1, 6)}


def test_a_text_that_is_given() -> None:
    (first, *_) = Generated(string_data="same").dataset(slots(("A", "STRING", [2]))).steps
    assert first.tensors["A"].as_numpy().tolist() == [b"same", b"same"]


def test_optional_inputs_are_left_out() -> None:
    model = slots(("A", "FP32", [1]))
    optional = TensorSlot("B", DataType.FP32, (1,), is_optional=True)
    both = type(model)(model.model, (*model.inputs, optional), model.outputs, model.is_batching)
    assert all(step.tensors.keys() == {"A"} for step in Generated().dataset(both).steps)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "MAX_BYTES", 1000)
    assert len(list(Generated(count=50).dataset(slots(("A", "FP32", [100]))).steps)) == 2


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (None, "input 'A' has variable dims .* --shape A:16,3"),
        ("A:2", "expects \\[-1, 3\\]"),
        ("A:2,4", "expects \\[-1, 3\\]"),
        ("B:2", "no input 'B'"),
        ("A:2000000000,3", "at most"),
    ],
)
def test_shapes_that_do_not_fit(shape: str | None, text: str) -> None:
    shapes = [given_shape(shape)] if shape else []
    with pytest.raises(DataError, match=text):
        Generated().dataset(slots(("A", "FP32", [-1, 3])), shapes)
