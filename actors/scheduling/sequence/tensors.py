"""Control tensors and implicit states, added to a sequence's requests and taken from its responses.

Flow: step → [dressed] → model instance → [undressed] → reply. To a backend they are ordinary inputs and outputs.
Source: Triton's `ModelSequenceBatching` (control inputs, implicit state).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from actors.mail.messages import ShapeKey
from actors.mail.reply_slot import Reply
from actors.scheduling.sequence.records import CorrelationId, Step
from backends.interface import HeldTensor, Rescheduled
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from repository.model_config import Control, ControlKind, ModelConfig, SequenceState
from repository.sequence_tensors import CONTROL_DIMS, control_data_type, hidden_outputs


@dataclass(frozen=True, slots=True)
class _Flag:
    """A control tensor with two values, made once."""

    kind: ControlKind
    when_false: Tensor
    when_true: Tensor


class SequenceTensors:
    """The control and state tensors of one model version.

    `initial_states` has one tensor for each state input (`repository.initial_state`). States are replaced, and
    never written to here, so a batch that failed leaves them as they were (but for those that share one buffer with
    their output, which a backend may hold: `backends.interface.HeldTensor`).
    """

    def __init__(self, config: ModelConfig, initial_states: Mapping[str, Tensor]) -> None:
        batching = config.sequence_batching
        self._model = config.name
        self._leading = (1,) if config.is_batching else ()
        self._flags: list[_Flag] = []
        self._id_control: tuple[str, DataType] | None = None
        for entry in batching.control_input if batching is not None else ():
            for control in entry.control:
                if control.kind is ControlKind.SEQUENCE_CORRID:
                    self._id_control = entry.name, control.data_type
                else:
                    self._flags.append(_flag(entry.name, control, (*self._leading, *CONTROL_DIMS)))
        self._states: tuple[SequenceState, ...] = () if batching is None else batching.state
        self._initial = tuple(initial_states[state.input_name] for state in self._states)
        self._has_variable_states = any(-1 in state.dims for state in self._states)
        self._hidden = tuple(output.name for output in hidden_outputs(config))
        self._state_outputs = tuple(state.output_name for state in self._states)

    @property
    def has_states(self) -> bool:
        return bool(self._states)

    def key_of_states(self, step: Step) -> ShapeKey:
        """What the states that a step will get must have in common with those of a batch; None where they always do."""
        if not self._has_variable_states:
            return None
        states = self._initial if step.is_start else step.sequence.states
        return tuple(tensor.shape for tensor in states)

    def dressed(self, step: Step) -> InferenceRequest:
        """The request that runs. At a START its sequence begins anew with the initial states."""
        request, sequence = step.request, step.sequence
        if step.is_start:
            sequence.states = self._initial
        step.states = sequence.states
        if self._id_control is not None and sequence.correlation_id is None:
            sequence.correlation_id = self._id_tensor(sequence.id)
        flags = {
            ControlKind.SEQUENCE_START: step.is_start,
            ControlKind.SEQUENCE_END: step.is_end,
            ControlKind.SEQUENCE_READY: True,
        }
        controls = self._controls(flags, sequence.correlation_id)
        requested = request.requested_outputs
        if requested:
            requested = (*requested, *(name for name in self._state_outputs if name not in requested))
        return replace(
            request,
            inputs=[*request.inputs, *controls, *sequence.states],
            requested_outputs=requested,
            sequence_id=sequence.id,
            sequence_start=step.is_start,
            sequence_end=step.is_end,
            template=None,  # which knows neither the controls nor the states
        )

    def null(self, like: Step) -> InferenceRequest:
        """A request for a row that has none: it looks like a real one of its batch, but READY is false and the
        correlation id is 0 (as text: empty). Its states are those of the other, and what it answers is dropped."""
        request = like.request
        id_tensor = None
        if self._id_control is not None:
            id_tensor = self._id_tensor("" if self._id_control[1] is DataType.BYTES else 0)
        controls = self._controls({}, id_tensor)
        return InferenceRequest(
            request.model_name,
            [*request.inputs, *controls, *like.sequence.states],
            model_version=request.model_version,
            requested_outputs=request.requested_outputs,
        )

    def undressed(self, step: Step, reply: Reply) -> Reply:
        """A reply as the caller gets it. From a response (or the end of a round) the next states are kept, and what the
        caller has not asked for is taken out; an error changes no state, but one in the states becomes the reply."""
        if not self._states or not isinstance(reply, InferenceResponse | Rescheduled):
            return reply
        try:
            self._keep_states(step, reply.outputs)
        except Internal as error:
            return error
        if isinstance(reply, Rescheduled):
            return reply
        requested = step.request.requested_outputs
        reply.outputs = [
            tensor
            for tensor in reply.outputs
            if tensor.name not in self._state_outputs
            or (tensor.name in requested if requested else tensor.name not in self._hidden)
        ]
        return reply

    def _keep_states(self, step: Step, outputs: Sequence[Tensor]) -> None:
        """Take the states of the next step from a step's outputs; one that is missing stays as it was.

        Raises:
            Internal: a state has another datatype or shape than the configuration says.
        """
        by_name = {tensor.name: tensor for tensor in outputs}
        states = list(step.sequence.states)
        for place, state in enumerate(self._states):
            tensor = by_name.get(state.output_name)
            if tensor is not None:
                self._check(state, tensor)
                if isinstance(tensor, HeldTensor):
                    states[place] = tensor.as_input(state.input_name)
                else:
                    states[place] = Tensor(state.input_name, tensor.datatype, tensor.shape, _own(tensor.data))
        step.sequence.states = tuple(states)

    def _check(self, state: SequenceState, tensor: Tensor) -> None:
        expected = (*self._leading, *state.dims)
        fits = len(expected) == len(tensor.shape) and all(
            dim in (-1, size) for dim, size in zip(expected, tensor.shape, strict=True)
        )
        if tensor.datatype is not state.data_type or not fits:
            raise Internal(
                f"model '{self._model}', state output '{state.output_name}': the configuration expects "
                f"{state.data_type.value} of shape {list(expected)}, the model gave {tensor.datatype.value} of shape "
                f"{list(tensor.shape)}"
            )

    def _controls(self, flags: Mapping[ControlKind, bool], correlation_id: Tensor | None) -> list[Tensor]:
        found = [flag.when_true if flags.get(flag.kind, False) else flag.when_false for flag in self._flags]
        if correlation_id is not None:
            found.append(correlation_id)
        return found

    def _id_tensor(self, id: CorrelationId) -> Tensor:
        assert self._id_control is not None
        name, data_type = self._id_control
        shape = (*self._leading, *CONTROL_DIMS)
        if data_type is DataType.BYTES:
            return Tensor(name, data_type, shape, encode_bytes_elements([str(id)]))
        assert isinstance(id, int)
        bits = 8 * data_type.itemsize
        return Tensor(name, data_type, shape, (id % (1 << bits)).to_bytes(data_type.itemsize, "little"))


def _flag(name: str, control: Control, shape: tuple[int, ...]) -> _Flag:
    values = control.int32_false_true or control.fp32_false_true or control.bool_false_true
    dtype = control_data_type(control).dtype
    when_false, when_true = (Tensor.from_numpy(name, np.full(shape, value, dtype=dtype)) for value in values)
    return _Flag(control.kind, when_false, when_true)


def _own(data: Buffer) -> Buffer:
    """The data without what it is cut from: a sequence that pauses must not keep the states of its whole batch."""
    if isinstance(data, memoryview):
        whole = data.obj.nbytes if isinstance(data.obj, np.ndarray) else memoryview(data.obj).nbytes
        if whole > data.nbytes:
            return bytes(data)
    return data
