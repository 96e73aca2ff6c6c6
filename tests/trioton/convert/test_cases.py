"""The cases: every size, every sample, and dimensions that really vary."""

from __future__ import annotations

import numpy as np
import pytest

from trioton.convert.cases import Way, batch_sizes, calibration_split, plan_cases, single_cases
from trioton.convert.tensors import Arrays, Description, TensorSpec

IMAGES = Description((TensorSpec("image", "FP32", (2, "height")), TensorSpec("mask", "BOOL", ("height",))), True)


def images(count: int, height: int = 6) -> list[Arrays]:
    return [
        {"image": np.full((2, height), number, np.float32), "mask": np.arange(height) % 2 == 0}
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 3, 4)), (8, (1, 2, 5, 8)), (64, (1, 2, 5, 64))],
)
def test_batch_sizes(largest: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes(largest) == sizes


def test_every_sample_is_asked() -> None:
    cases = plan_cases(images(40), IMAGES, 8)
    seen = {int(value) for case in cases for value in np.unique(case.inputs["image"])}
    assert seen == set(range(40))
    assert all(array.shape[0] == case.rows for case in cases for array in case.inputs.values())
    assert len({case.name for case in cases}) == len(cases)


def test_the_largest_batch_is_also_asked_row_by_row_and_joined() -> None:
    cases = {case.name: case for case in plan_cases(images(3), IMAGES, 8)}
    assert (cases["batch 8, alone"].way, cases["batch 8, alone"].asks) == (Way.ALONE, "batch 8")
    assert cases["batch 8, joined"].way is Way.JOINED
    assert np.array_equal(cases["batch 8, joined"].inputs["image"], cases["batch 8"].inputs["image"])


def test_a_size_that_varies_is_varied_in_all_inputs_at_once() -> None:
    cases = [case for case in plan_cases(images(2), IMAGES, 8) if case.name.startswith("height")]
    shapes = [(case.inputs["image"].shape, case.inputs["mask"].shape) for case in cases]
    assert shapes == [((2, 2, size), (2, size)) for size in (3, 7, 13)]


def test_samples_of_several_shapes_are_enough_variation() -> None:
    cases = plan_cases(images(2, 6) + images(2, 9), IMAGES, 2)
    assert {case.inputs["mask"].shape[1] for case in cases} == {6, 9}
    assert "batch 2 of shape 2" in [case.name for case in cases]


def test_without_a_batch_dimension_each_sample_is_a_case() -> None:
    description = Description((TensorSpec("x", "FP32", (3,)),), False)
    samples: list[Arrays] = [{"x": np.zeros(3, np.float32)}, {"x": np.ones(3, np.float32)}]
    cases = plan_cases(samples, description, 0)
    assert [(case.name, case.inputs["x"].shape, case.rows) for case in cases] == [
        ("sample 1", (3,), 1),
        ("sample 2", (3,), 1),
    ]


def test_rows_are_judged_that_were_not_calibrated_with() -> None:
    rows = images(20)
    calibration, judged = calibration_split(rows)
    assert len(calibration) == len(judged) == 10
    assert not {id(row) for row in calibration} & {id(row) for row in judged}
    few = images(4)
    assert calibration_split(few) == (few, few)
    assert [case.inputs["image"].shape for case in single_cases(few[:1], IMAGES)] == [(1, 2, 6)]
