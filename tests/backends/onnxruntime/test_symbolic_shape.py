"""What a file's names say of an output's shape before the model has run."""

from __future__ import annotations

import pytest

from backends.onnxruntime.symbolic_shape import DeclaredShape, shape_from, sizes_of_names

SIZES = {"batch": 2, "past": 5, "seq": 3, "past seq": 9, "a+b": 4}


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        (["batch", 7], (2, 7)),
        (["past + seq"], (8,)),
        (["past+1"], (6,)),
        (["past - seq", "1 + past + 2"], (2, 8)),
        (["past seq"], (9,)),  # a name may hold anything
        (["a+b"], (4,)),
        ([], ()),
        ([None], None),
        (["other"], None),
        (["past + other"], None),
        (["past * seq"], None),
        (["past seq past"], None),
        (["past +"], None),
        (["seq - past"], None),  # no size
        ([""], None),
    ],
)
def test_shape_from_names(declared: DeclaredShape, shape: tuple[int, ...] | None) -> None:
    assert shape_from(declared, SIZES) == shape


def test_names_have_the_sizes_of_the_tensors_that_bear_them() -> None:
    shapes: list[tuple[DeclaredShape, tuple[int, ...]]] = [
        (["b", "n", 3], (1, 4, 3)),
        ([None, "m"], (7, 8)),
        (["x"], (1, 1)),
    ]
    assert sizes_of_names(shapes) == {"b": 1, "n": 4, "m": 8}
