"""Implicit sequence states kept in device memory between the steps of a sequence.

Flow: batcher → [held states: gather → run → keep] → batcher, which hands the tensors on from step to step without
looking into them (`backends.interface.HeldTensor`). For instances on a GPU, and for the state options of one buffer and
of growable memory on any device. Rules, for each state:

1. A step alone in its batch reads its state where the step before has left it. The states of several steps are copied
   into one tensor, and what they become is copied out again.
2. A state with two buffers is never written to, so a step that fails leaves it as it was.
3. With `use_same_buffer_for_input_output` the next state is written over the present one, where its size is known
   before the run and lets it. A model must have read its state when it writes the next; one that fails may leave
   any value.
4. With `use_growable_memory` too, memory is allocated twice as large as needed, so that it seldom is. Where a state
   grows in its first dimension that is not 1, what there is stays where it is. Else two such pieces take turns.

Source: Triton's `ModelSequenceBatching.State`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.interface import HeldTensor, InstanceSpec
from backends.onnxruntime.device_memory import CPU, CUDA, DeviceMemory, Piece, byte_size, piece_of
from backends.onnxruntime.ort_values import to_array, to_value
from backends.onnxruntime.signature import ONNX_ELEMENT_TYPES
from backends.onnxruntime.symbolic_shape import DeclaredShape, shape_from, sizes_of_names
from protocol.errors import InvalidArgument, Unsupported
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import InstanceKind, SequenceState

_LEAST_GROWABLE = 4096  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """One sequence's state: the value over a piece of memory, which may be larger. `spare` is the other of two
    growable pieces that take turns."""

    value: Any
    shape: tuple[int, ...]
    piece: Piece
    spare: Piece | None = None


@dataclass(slots=True, eq=False)
class _State:
    """What is to be known of a state, and the memory in which those of a batch are joined."""

    config: SequenceState
    element_type: int
    declared_input: DeclaredShape
    declared_output: DeclaredShape
    is_visible: bool
    joined: Piece | None = None

    @property
    def itemsize(self) -> int:
        return self.config.data_type.itemsize


def held_states(spec: InstanceSpec, session: Any, outputs: Sequence[str], run_options: Any) -> HeldStates | None:
    """The states of an instance, if they are to be held where it computes and can be: none is a scalar, and the model
    has no string inputs, which the library takes from the host alone.

    Raises:
        InvalidArgument: memory is to grow that cannot be held.
    """
    config = spec.config
    batching = config.sequence_batching
    states = () if batching is None else batching.state
    is_on_gpu = spec.kind is InstanceKind.GPU
    if not states or not (is_on_gpu or any(state.use_same_buffer_for_input_output for state in states)):
        return None
    inputs = {arg.name: arg for arg in (*session.get_inputs(), *session.get_overridable_initializers())}
    by_name = {arg.name: arg for arg in session.get_outputs()}
    visible = {output.name for output in config.output}
    can_hold = all(arg.type != "tensor(string)" for arg in inputs.values()) and all(
        inputs[state.input_name].shape and by_name[state.output_name].shape for state in states
    )
    if not can_hold:
        growable = [state.input_name for state in states if state.use_growable_memory]
        if growable:
            raise InvalidArgument(
                f"model '{config.name}': 'use_growable_memory' of state input '{growable[0]}' needs a model whose "
                "inputs are numbers, and whose states have at least one dimension"
            )
        return None
    memory = DeviceMemory(session, kind=CUDA if is_on_gpu else CPU, id=spec.device_id if is_on_gpu else 0)
    known = [
        _State(
            state,
            ONNX_ELEMENT_TYPES[state.data_type],
            inputs[state.input_name].shape,
            by_name[state.output_name].shape,
            state.output_name in visible,
        )
        for state in states
    ]
    return HeldStates(
        known,
        memory,
        declared={name: arg.shape for name, arg in inputs.items()},
        outputs=[name for name in outputs if name not in {state.output_name for state in states}],
        is_batching=config.is_batching,
        run_options=run_options,
    )


class HeldStates:
    """Runs the batches of one instance whose states stay on its device; `outputs` are those that are no states."""

    def __init__(
        self,
        states: Sequence[_State],
        memory: DeviceMemory,
        *,
        declared: Mapping[str, DeclaredShape],
        outputs: Sequence[str],
        is_batching: bool,
        run_options: Any,
    ) -> None:
        self._states = states
        self._memory = memory
        self._declared = declared
        self._outputs = outputs
        self._on_host = frozenset(outputs)
        self._leading = 1 if is_batching else 0
        self._run_options = run_options
        self.inputs = frozenset(state.config.input_name for state in states)
        self.state_outputs = frozenset(state.config.output_name for state in states)

    def run(
        self, arrays: Mapping[str, NDArray[Any]], requests: Sequence[InferenceRequest]
    ) -> tuple[dict[str, NDArray[Any]], list[list[Tensor]]]:
        """Run one batch: `arrays` are its joined inputs but for the states, which the requests have, one row each.

        Returns the outputs that are no states, and for each request its next states; none for a request of no sequence.
        """
        feeds = {name: to_value(array) for name, array in arrays.items()}
        shapes = [(self._declared[name], array.shape) for name, array in arrays.items() if name in self._declared]
        given: list[list[Tensor]] = []
        for state in self._states:
            name = state.config.input_name
            tensors = [tensor for request in requests for tensor in request.inputs if tensor.name == name]
            given.append(tensors)
            if len(tensors) == len(requests):  # else the library names the input that it misses
                feeds[name] = self._joined(state, tensors)
                shapes.append((state.declared_input, (*self._rows(tensors), *tensors[0].shape[self._leading :])))
        sizes = sizes_of_names(shapes)
        targets = [
            self._target(state, tensors[0], sizes) if len(requests) == 1 and tensors else None
            for state, tensors in zip(self._states, given, strict=True)
        ]
        fetches: dict[str, Any] = dict.fromkeys(self._outputs)
        for state, target in zip(self._states, targets, strict=True):
            fetches[state.config.output_name] = None if target is None else target.value
        values = self._memory.run(feeds, fetches, self._run_options, on_host=self._on_host)
        kept: list[list[Tensor]] = [[] for _ in requests]
        for state, tensors, target in zip(self._states, given, targets, strict=True):
            value = values[state.config.output_name]
            if len(requests) > 1:
                found = self._taken_apart(state, value, tensors, requests)
            elif requests[0].sequence_id:
                found = [self._library_held(state, value) if target is None else target]
            else:
                found = [None]
            for row, held in zip(kept, found, strict=True):
                if held is not None:
                    data = (
                        self._memory.read(held.piece.part(0, byte_size(held.shape, state.itemsize)))
                        if state.is_visible
                        else b""
                    )
                    row.append(HeldTensor(state.config.output_name, state.config.data_type, held.shape, data, held))
        return {name: to_array(values[name]) for name in self._outputs}, kept

    def _rows(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        return (sum(tensor.shape[0] for tensor in tensors),) if self._leading else ()

    def _joined(self, state: _State, tensors: Sequence[Tensor]) -> Any:
        """The states of a batch as the one value that the model takes."""
        if len(tensors) == 1 and isinstance(tensors[0], HeldTensor):
            return tensors[0].held.value
        if not any(isinstance(tensor, HeldTensor) for tensor in tensors):
            return to_value(_on_host(tensors))
        shape = (*self._rows(tensors), *tensors[0].shape[self._leading :])
        size = byte_size(shape, state.itemsize)
        if state.joined is None or state.joined.byte_size < size:
            state.joined = self._memory.allocate(size)
        offset = 0
        pairs: list[tuple[Piece, Piece]] = []
        for tensor in tensors:
            size = byte_size(tensor.shape, state.itemsize)
            target = state.joined.part(offset, size)
            if isinstance(tensor, HeldTensor):
                pairs.append((tensor.held.piece.part(0, size), target))
            else:
                self._memory.write(_on_host([tensor]), target)
            offset += size
        self._memory.copy(pairs)
        return self._memory.view(state.joined, state.element_type, shape)

    def _target(self, state: _State, tensor: Tensor, sizes: Mapping[str, int]) -> Held | None:
        """Where the next state of a step that is alone in its batch is to be written; None where the library finds
        the memory."""
        if not state.config.use_same_buffer_for_input_output:
            return None
        configured = (*tensor.shape[: self._leading], *state.config.dims)
        shape = shape_from(configured if -1 not in configured else state.declared_output, sizes)
        if shape is None or len(shape) != len(tensor.shape):
            return None
        held = _held(tensor)
        size = byte_size(shape, state.itemsize)
        if held is None:
            return self._placed(state, self._memory.allocate(_with_room(state, size)), shape)
        stays = keeps_its_place(held.shape, shape)
        if stays and held.shape == shape:
            return held
        if stays and size <= held.piece.byte_size:
            return self._placed(state, held.piece, shape)
        if not state.config.use_growable_memory:
            return None
        in_turn = held.spare
        if in_turn is None or in_turn.byte_size < size:
            in_turn = self._memory.allocate(_with_room(state, size))
        return self._placed(state, in_turn, shape, spare=None if stays else held.piece)

    def _placed(self, state: _State, piece: Piece, shape: tuple[int, ...], spare: Piece | None = None) -> Held:
        return Held(self._memory.view(piece, state.element_type, shape), shape, piece, spare)

    def _library_held(self, state: _State, value: Any) -> Held:
        shape = tuple(value.shape())
        return Held(value, shape, piece_of(value, byte_size(shape, state.itemsize)))

    def _taken_apart(
        self, state: _State, value: Any, tensors: Sequence[Tensor], requests: Sequence[InferenceRequest]
    ) -> list[Held | None]:
        """The next states of a batch, each in a piece of its own: with one buffer, where the present one is."""
        shape = tuple(value.shape())
        if shape[0] < len(requests):
            raise Unsupported(
                f"failed to split the output tensor '{state.config.output_name}' in responses: expected batch size of "
                f"at least {len(requests)} in model output, got {shape[0]}"
            )
        row = (1, *shape[1:])
        size = byte_size(row, state.itemsize)
        whole = piece_of(value, byte_size(shape, state.itemsize))
        found: list[Held | None] = []
        pairs: list[tuple[Piece, Piece]] = []
        for index, (tensor, request) in enumerate(zip(tensors, requests, strict=True)):
            if not request.sequence_id:
                found.append(None)
                continue
            target = self._row_target(state, _held(tensor), row, size)
            pairs.append((whole.part(index * size, size), target.piece))
            found.append(target)
        self._memory.copy(pairs)
        return found

    def _row_target(self, state: _State, held: Held | None, row: tuple[int, ...], size: int) -> Held:
        if state.config.use_same_buffer_for_input_output and held is not None:
            if held.shape == row:
                return held
            if held.piece.byte_size >= size:
                return self._placed(state, held.piece, row, held.spare)
        return self._placed(state, self._memory.allocate(_with_room(state, size)), row)


def keeps_its_place(present: Sequence[int], following: Sequence[int]) -> bool:
    """Whether each element of a tensor lies where it does now in one of another shape."""
    for index, (size, next_size) in enumerate(zip(present, following, strict=True)):
        if size != next_size:
            is_outermost = all(before == 1 for before in present[:index])
            return is_outermost and tuple(present[index + 1 :]) == tuple(following[index + 1 :])
    return True


def _with_room(state: _State, size: int) -> int:
    return max(2 * size, _LEAST_GROWABLE) if state.config.use_growable_memory else size


def _held(tensor: Tensor) -> Held | None:
    return tensor.held if isinstance(tensor, HeldTensor) and isinstance(tensor.held, Held) else None


def _on_host(tensors: Sequence[Tensor]) -> NDArray[Any]:
    arrays = [tensor.as_numpy() for tensor in tensors]
    joined = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    return joined if joined.flags.aligned else joined.copy()
