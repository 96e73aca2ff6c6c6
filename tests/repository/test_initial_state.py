"""The initial values of implicit states: zeros, files, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, NotFound
from protocol.messages import Tensor, encode_bytes_elements
from repository.initial_state import read_initial_states
from repository.model_config import Dims, InitialState, ModelConfig, ModelSequenceBatching, SequenceState


def read(
    directory: Path,
    *,
    data_type: DataType = DataType.INT32,
    dims: Dims = (2,),
    initial: InitialState | None = None,
    max_batch_size: int = 0,
) -> Tensor:
    state = SequenceState("IN", "OUT", data_type, dims, () if initial is None else (initial,))
    config = ModelConfig(
        name="m", max_batch_size=max_batch_size, sequence_batching=ModelSequenceBatching(state=(state,))
    )
    return read_initial_states(directory, config)["IN"]


def from_file(name: str, *, dims: Dims = (2,), data_type: DataType = DataType.INT32) -> InitialState:
    return InitialState(data_type=data_type, dims=dims, data_file=name, name="n")


def write(directory: Path, data: bytes, name: str = "start") -> None:
    folder = directory / "initial_state"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)


def test_a_model_without_states_has_none(tmp_path: Path) -> None:
    assert read_initial_states(tmp_path, ModelConfig(name="m")) == {}


@pytest.mark.parametrize(("max_batch_size", "shape"), [(0, (1, 3)), (8, (1, 1, 3))])
def test_without_initial_state_it_is_zeros_with_one_for_each_variable_dimension(
    tmp_path: Path, max_batch_size: int, shape: tuple[int, ...]
) -> None:
    found = read(tmp_path, dims=(-1, 3), max_batch_size=max_batch_size)
    assert found.shape == shape
    assert not found.as_numpy().any()


def test_zero_data_has_the_dims_that_are_given(tmp_path: Path) -> None:
    initial = InitialState(data_type=DataType.INT32, dims=(4, 3), zero_data=True, name="n")
    found = read(tmp_path, dims=(-1, 3), initial=initial)
    assert (found.name, found.datatype, found.shape) == ("IN", DataType.INT32, (4, 3))
    assert not found.as_numpy().any()


def test_zero_data_of_strings_is_empty_strings(tmp_path: Path) -> None:
    found = read(tmp_path, data_type=DataType.BYTES)
    assert found.as_numpy().tolist() == [b"", b""]


def test_a_file_holds_the_elements(tmp_path: Path) -> None:
    write(tmp_path, np.array([5, 6], dtype=np.int32).tobytes())
    assert read(tmp_path, initial=from_file("start"), max_batch_size=2).as_numpy().tolist() == [[5, 6]]


def test_a_file_may_hold_more(tmp_path: Path) -> None:
    write(tmp_path, np.array([5, 6, 7], dtype=np.int32).tobytes())
    assert read(tmp_path, initial=from_file("start")).as_numpy().tolist() == [5, 6]


def test_a_file_that_is_too_short_is_refused_in_tritons_words(tmp_path: Path) -> None:
    write(tmp_path, b"12345")
    with pytest.raises(InvalidArgument) as caught:
        read(tmp_path, initial=from_file("start"))
    path = tmp_path / "initial_state" / "start"
    assert caught.value.message == (
        f"initial_state setting expects 8 bytes, but the data provided from {path}only has 5 bytes."
    )


def test_strings_come_from_a_file_in_their_raw_layout(tmp_path: Path) -> None:
    write(tmp_path, encode_bytes_elements(["a", "bc"]))
    found = read(tmp_path, data_type=DataType.BYTES, initial=from_file("start", data_type=DataType.BYTES))
    assert found.as_numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("data", [encode_bytes_elements(["a"]), b"\1\0\0", encode_bytes_elements(["a", "b", "c"])])
def test_strings_that_are_not_those_of_the_shape_are_refused(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, data)
    with pytest.raises(InvalidArgument, match="initial_state of state 'IN' from"):
        read(tmp_path, data_type=DataType.BYTES, initial=from_file("start", data_type=DataType.BYTES))


@pytest.mark.parametrize("name", ["", "../outside", "/etc/passwd", "..", ".", "a/../../b"])
def test_a_file_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(bytes(8))
    with pytest.raises(InvalidArgument, match="is no file in the model's directory 'initial_state'"):
        read(tmp_path, initial=from_file(name))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="initial_state/none': No such file"):
        read(tmp_path, initial=from_file("none"))
