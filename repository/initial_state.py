"""Initial values of implicit sequence states: zeros, or a file in `<model>/initial_state/`.

Flow: model directory and final configuration -> [initial_state] -> one tensor for each state input, as the first
request of a sequence gets it. Source: Triton's `ModelSequenceBatching.InitialState`.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping
from pathlib import Path

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, NotFound
from protocol.messages import Tensor, decode_bytes_elements
from repository.model_config import InitialState, ModelConfig, SequenceState

INITIAL_STATE_FOLDER = "initial_state"
# The raw layout of an empty string.
_EMPTY_STRING = bytes(4)


def read_initial_states(directory: Path, config: ModelConfig) -> Mapping[str, Tensor]:
    """The initial states by the names of their inputs, with a batch dimension of 1 where the model has one. Blocks.

    A state without `initial_state` starts with zeros (strings: empty), with 1 for every variable dimension; Triton
    leaves its contents open.

    Raises:
        InvalidArgument: a file is outside the model's directory, or does not hold the elements that the state needs.
        NotFound: there is no such file, or it cannot be read.
    """
    batching = config.sequence_batching
    leading = (1,) if config.is_batching else ()
    states = () if batching is None else batching.state
    return {state.input_name: _initial_tensor(directory, config.name, state, leading) for state in states}


def _initial_tensor(directory: Path, model: str, state: SequenceState, leading: tuple[int, ...]) -> Tensor:
    initial = state.initial_state[0] if state.initial_state else None
    dims = tuple(max(dim, 1) for dim in state.dims) if initial is None else initial.dims
    count = math.prod(dims)
    if initial is not None and initial.data_file is not None:
        data = _read(directory, model, state, initial, count)
    else:
        data = count * _EMPTY_STRING if state.data_type is DataType.BYTES else bytes(count * state.data_type.itemsize)
    return Tensor(state.input_name, state.data_type, (*leading, *dims), data)


def _read(directory: Path, model: str, state: SequenceState, initial: InitialState, count: int) -> bytes:
    name = initial.data_file or ""
    inside = posixpath.normpath(name)
    if not name or posixpath.isabs(inside) or inside.split("/")[0] in ("..", "."):
        raise InvalidArgument(
            f"initial_state of state '{state.input_name}' of model '{model}': data_file '{name}' is no file in the "
            f"model's directory '{INITIAL_STATE_FOLDER}'"
        )
    path = directory / INITIAL_STATE_FOLDER / inside
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFound(
            f"failed to read the initial_state of state '{state.input_name}' of model '{model}' from '{path}': "
            f"{error.strerror}"
        ) from None
    if state.data_type is DataType.BYTES:
        _check_strings(data, state, path, count)
        return data
    expected = count * state.data_type.itemsize
    if len(data) < expected:
        # The missing blank is Triton's.
        raise InvalidArgument(
            f"initial_state setting expects {expected} bytes, but the data provided from {path}only has {len(data)} "
            "bytes."
        )
    return data[:expected]


def _check_strings(data: bytes, state: SequenceState, path: Path, count: int) -> None:
    where = f"initial_state of state '{state.input_name}' from '{path}'"
    try:
        found = len(decode_bytes_elements(data))
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None
    if found != count:
        raise InvalidArgument(f"{where}: expected {count} string elements, got {found}")
