"""Ensemble state: the tensors of one ensemble request as they become known, and the steps that become ready by them.

Flow: ensemble request, with the outputs of a step → [ensemble state] → the steps that can run now. Plain and
synchronous: it starts nothing and waits for nothing.

Rules:

1. A node (a step, or the response) runs once in every iteration of its depth, when all tensors that it reads are known.
2. A tensor is known when it is there, or known to be absent: SKIPPED (a condition says so), LEFT_OUT (an optional
   input by the client, an output by a step's model) or MISSING (its step could not run). One with several writers is
   there with the first that gives it; where none does, the gravest of their reasons counts.
   What a step's model leaves out is LEFT_OUT, but SKIPPED if that is an ensemble: its own conditions say so.
3. A step whose condition does not hold, or that requires a tensor that is SKIPPED, is skipped as soon as that is
   known; its outputs are SKIPPED. One that requires a tensor that is LEFT_OUT or MISSING cannot run; its outputs are
   MISSING.
4. A decoupled step opens a child iteration for each of its responses. An iteration sees its own tensors and those of
   the iterations around it, and no others, so tensors of two iterations never meet.
5. A response leaves out outputs that are SKIPPED or LEFT_OUT, and cannot be made where one is MISSING.
6. A tensor is released when all that read it have run, if it is no output and nothing in an inner iteration reads it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from actors.ensemble.graph import Node, Plan, Port
from actors.ensemble.sequence import SequenceValues
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor

# The count of tensors that a node still waits for, once it has been started or skipped.
_DECIDED = -1


class Absence(enum.IntEnum):
    """Why a tensor is not there, gravest last."""

    SKIPPED = 1
    LEFT_OUT = 2
    MISSING = 3


# What a step that requires such a tensor cannot do without.
_UNMET = (Absence.LEFT_OUT, Absence.MISSING)

Value: TypeAlias = Tensor | Absence


@dataclass(eq=False, slots=True)
class Iteration:
    """One set of tensors. `held_bytes` are those of its tensors that steps have made and that are not released;
    `overrides` has the tensors whose steps changed the sequence's values."""

    depth: int
    parent: Iteration | None
    tensors: dict[str, Value]
    waits_for: dict[Node, int]
    children: set[Iteration] = field(default_factory=set)
    overrides: dict[str, SequenceValues] = field(default_factory=dict)
    held_bytes: int = 0
    uses: dict[str, int] = field(default_factory=dict)
    writers: dict[str, tuple[int, Absence]] = field(default_factory=dict)

    def value(self, tensor: str) -> Value | None:
        """A tensor's value as this iteration sees it; None while it is not known."""
        iteration: Iteration | None = self
        while iteration is not None:
            found = iteration.tensors.get(tensor)
            if found is not None:
                return found
            iteration = iteration.parent
        return None

    def override(self, reads: Iterable[str]) -> SequenceValues | None:
        """What the previous steps have made of the sequence's values; the last of `reads` that sets them counts."""
        found: SequenceValues | None = None
        iteration: Iteration | None = self
        while iteration is not None:
            if iteration.overrides:
                for tensor in reads:
                    found = iteration.overrides.get(tensor, found)
            if found is not None:
                return found
            iteration = iteration.parent
        return None


Ready: TypeAlias = tuple[Iteration, Node]


class EnsembleState:
    """The state of one request. Methods return the nodes that are ready; each is returned once per iteration."""

    def __init__(self, plan: Plan, request: InferenceRequest) -> None:
        self.plan = plan
        self.root = Iteration(0, None, {}, {node: len(node.reads) for node in plan.by_depth[0]})
        self._request = request
        self._given = {tensor.name: tensor for tensor in request.inputs}
        self._ready: list[Ready] = []
        self._barren: list[Iteration] = []
        self._skipped: deque[tuple[Iteration, Node, Absence]] = deque()

    def begin(self, inputs: Sequence[str], reshaped: Mapping[str, Port] = MappingProxyType({})) -> list[Ready]:
        """Take the request's tensors; `inputs` are all that the ensemble has, and those `reshaped` come through ports.

        Raises:
            InvalidArgument: as `complete`.
        """
        for name in inputs:
            value = self._given.get(name)
            if value is not None and name in reshaped:
                value = reshaped[name].adapt(value)
            self._know(self.root, name, Absence.LEFT_OUT if value is None else value)
        return self._settled()

    def complete(
        self,
        iteration: Iteration,
        node: Node,
        outputs: Mapping[str, Tensor],
        override: SequenceValues | None = None,
    ) -> list[Ready]:
        """A step has run and given these tensors, by its model's names.

        Raises:
            InvalidArgument: a condition that is neither true nor false, or a decoupled step that cannot run.
        """
        self._let_go(iteration, node)
        self._take(iteration, node, outputs, override)
        return self._settled()

    def new_child(self, parent: Iteration) -> Iteration:
        """A decoupled step has given a response: a new iteration of all that depends on it, which sees the tensors
        around it from `begin_child` on."""
        nodes = self.plan.by_depth[parent.depth + 1]
        return Iteration(parent.depth + 1, parent, {}, {node: len(node.reads) for node in nodes})

    def begin_child(
        self,
        child: Iteration,
        node: Node,
        outputs: Mapping[str, Tensor],
        override: SequenceValues | None = None,
    ) -> list[Ready]:
        """Take the tensors of the response.

        Raises:
            InvalidArgument: as `complete`.
        """
        assert child.parent is not None
        child.parent.children.add(child)
        for waiting in self.plan.by_depth[child.depth]:
            for tensor in waiting.outer:
                value = child.parent.value(tensor)
                if value is not None:
                    self._tell(child, waiting, tensor, value)
        self._take(child, node, outputs, override)
        return self._settled()

    def end_stream(self, iteration: Iteration, node: Node) -> None:
        """A decoupled step has given its last response."""
        self._let_go(iteration, node)

    def take_barren(self) -> list[Iteration]:
        """The iterations whose decoupled step was skipped since the last call: they will give no response."""
        barren, self._barren = self._barren, []
        return barren

    def close(self, iteration: Iteration) -> None:
        """Release an iteration: its response is made, or there will be none."""
        if iteration.parent is not None:
            iteration.parent.children.discard(iteration)
        iteration.waits_for.clear()
        iteration.tensors.clear()
        iteration.held_bytes = 0

    def step_inputs(self, iteration: Iteration, node: Node) -> list[Tensor]:
        """The tensors of a step's request; optional inputs whose tensor is absent are left out."""
        assert node.step is not None
        inputs: list[Tensor] = []
        for port in node.step.inputs:
            value = iteration.value(port.tensor)
            if isinstance(value, Tensor):
                inputs.append(port.adapt(value))
        return inputs

    def response_outputs(self, iteration: Iteration) -> list[Tensor]:
        """The ensemble's outputs, but for those that are skipped or left out.

        Raises:
            InvalidArgument: one is missing.
            Internal: as `Port.adapt`.
        """
        outputs: list[Tensor] = []
        for port in self.plan.outputs:
            value = iteration.value(port.tensor)
            if isinstance(value, Tensor):
                outputs.append(port.adapt(value))
            elif value is Absence.MISSING:
                raise self.deadlock(f"output '{port.name}' is missing")
        return outputs

    def left_out(self, iteration: Iteration) -> list[str]:
        """The ensemble's outputs that no model gave, and no condition skipped."""
        return [port.name for port in self.plan.outputs if iteration.value(port.tensor) is Absence.LEFT_OUT]

    def deadlock(self, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"[request id: {self._request.id or '<id_unknown>'}] unexpected deadlock, at least one output is not set "
            f"while no more ensemble steps can be made: {why}"
        )

    def _take(
        self, iteration: Iteration, node: Node, outputs: Mapping[str, Tensor], override: SequenceValues | None
    ) -> None:
        for name, tensor in node.outputs.items():
            value = outputs.get(name)
            if value is None:
                is_skipped = node.step is not None and node.step.omits_skipped
                self._lack(iteration, tensor, Absence.SKIPPED if is_skipped else Absence.LEFT_OUT)
                continue
            if override is not None:
                iteration.overrides[tensor] = override
            self._know(iteration, tensor, value)
            if iteration.uses.get(tensor) == 0:  # all its readers were skipped before
                iteration.tensors[tensor] = Absence.SKIPPED
            else:
                iteration.held_bytes += value.byte_size

    def _lack(self, iteration: Iteration, tensor: str, absence: Absence) -> None:
        """A writer will not give a tensor; it is absent if no other does."""
        writers = self.plan.writers.get(tensor)
        if writers is not None:
            left, before = iteration.writers.get(tensor, (writers, Absence.SKIPPED))
            absence = max(absence, before)
            iteration.writers[tensor] = left - 1, absence
            if left > 1:
                return
        self._know(iteration, tensor, absence)

    def _know(self, iteration: Iteration, tensor: str, value: Value) -> None:
        if tensor in iteration.tensors:
            return
        iteration.tensors[tensor] = value
        for node in self.plan.readers.get(tensor, ()):
            for reading in _iterations(iteration, node.depth):
                self._tell(reading, node, tensor, value)

    def _tell(self, iteration: Iteration, node: Node, tensor: str, value: Value) -> None:
        """A tensor that a node reads is known."""
        left = iteration.waits_for.get(node, _DECIDED)
        if left == _DECIDED:
            return
        if tensor in node.requires and (value is Absence.SKIPPED or not _holds(node, tensor, value)):
            iteration.waits_for[node] = _DECIDED
            self._skipped.append((iteration, node, Absence.SKIPPED))
            return
        iteration.waits_for[node] = left - 1
        if left > 1:
            return
        iteration.waits_for[node] = _DECIDED
        if any(iteration.value(read) in _UNMET for read in node.requires):
            self._skipped.append((iteration, node, Absence.MISSING))
        else:
            self._ready.append((iteration, node))

    def _settled(self) -> list[Ready]:
        """The nodes that are ready, after all that is skipped was propagated."""
        while self._skipped:
            iteration, node, absence = self._skipped.popleft()
            if node.is_decoupled:
                if absence is Absence.MISSING:
                    assert node.step is not None
                    missing = next(r for r in node.step.reads if iteration.value(r) in _UNMET)
                    raise self.deadlock(f"tensor '{missing}' of {node.step.label}, is missing")
                self._barren.append(iteration)
                continue
            self._let_go(iteration, node)
            for tensor in node.outputs.values():
                self._lack(iteration, tensor, absence)
        ready, self._ready = self._ready, []
        return [each for each in ready if each[0] not in self._barren] if self._barren else ready

    def _let_go(self, iteration: Iteration, node: Node) -> None:
        for tensor in node.reads:
            uses = self.plan.uses.get(tensor)
            if uses is None:
                continue
            left = iteration.uses[tensor] = iteration.uses.get(tensor, uses) - 1
            value = iteration.tensors.get(tensor)
            if not left and isinstance(value, Tensor):
                # It stays known, but needs no memory any more. The request's own tensors do not count.
                iteration.tensors[tensor] = Absence.SKIPPED
                if tensor not in self._given:
                    iteration.held_bytes -= value.byte_size


def _holds(node: Node, tensor: str, value: Value) -> bool:
    """Whether the node's condition lets it run, as far as this tensor decides."""
    condition = node.condition
    if condition is None or condition.tensor != tensor or not isinstance(value, Tensor):
        return True
    assert node.step is not None
    data = bytes(value.data)
    count_true = len(data) - data.count(0)
    if not data or 0 < count_true < len(data):
        what = f"{count_true} true of {len(data)} elements" if data else "no element"
        raise InvalidArgument(
            f"condition '{tensor}' must be all true or all false in one request, but it has {what} ({node.step.label})"
        )
    return bool(count_true) is not condition.is_negated


def _iterations(iteration: Iteration, depth: int) -> Iterable[Iteration]:
    """The iteration itself, or those inside it that have the given depth."""
    if iteration.depth == depth:
        return (iteration,)
    found: list[Iteration] = [iteration]
    while found and found[0].depth < depth:
        found = [child for each in found for child in each.children]
    return found
