"""Telling scalars from tensors of unknown rank in the file itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.onnxruntime.onnx_file import tensors_without_shape
from tests.backends.onnxruntime.onnx_models import model, node, save, tensor


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    made = model(
        [node("Identity", [name], [f"{name}_out"]) for name in ("scalar", "vector", "unknown")],
        [tensor("scalar", []), tensor("vector", ["N", 4]), tensor("unknown", None)],
        [tensor("scalar_out", []), tensor("vector_out", ["N", 4]), tensor("unknown_out", None)],
    )
    return save(made, tmp_path) / "1" / "model.onnx"


def test_only_tensors_without_a_declared_shape_are_named(mixed: Path) -> None:
    assert tensors_without_shape(mixed) == {"unknown", "unknown_out"}


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_any_other_file_names_none_or_is_walked_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.ort"
    path.write_bytes(data)
    assert isinstance(tensors_without_shape(path), frozenset)


def test_a_cut_file_is_no_error(mixed: Path) -> None:
    whole = mixed.read_bytes()
    for length in range(1, len(whole), 7):
        mixed.write_bytes(whole[:length])
        assert tensors_without_shape(mixed) <= {"unknown", "unknown_out"}
