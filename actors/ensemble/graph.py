"""Ensemble graph: the dataflow graph of an ensemble's steps, and the plan that a set of requested outputs needs.

Flow: ensemble validation → [ensemble graph] → ensemble state. Plain values without I/O.

A decoupled step gives its tensors once per response, each time for an *iteration* of all that depends on it. So every
step has a *depth*: how many decoupled steps its inputs have come through, one inside the other. Depth 0 runs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from actors.ensemble.validation import decoupled_chains, optional_inputs
from backends.array_batch import Reshape
from protocol.errors import Internal
from protocol.messages import Tensor
from repository.completion import format_shape
from repository.ensemble_parameters import StepCondition
from repository.ensemble_wiring import StepWiring, running_order, wire
from repository.model_config import EnsembleStep, ModelConfig, ModelInput, ModelOutput

# Plans that are kept; clients choose the outputs, so there could be any number of them.
MAX_KEPT_PLANS = 64


@dataclass(frozen=True, slots=True)
class Port:
    """Where an ensemble tensor goes in or out: the name there, and the number of dimensions there (`rank`, the batch
    dimension included if `is_batching`). `reshape` is that of the ensemble itself, behind it."""

    name: str
    tensor: str
    rank: int
    is_batching: bool
    reshape: Reshape | None = None

    def adapt(self, value: Tensor) -> Tensor:
        """The tensor under this port's name, over the same data. Its batch dimension is added or taken away where only
        one side has one; a batch of several cannot be taken away, and the model then refuses the shape.

        Raises:
            Internal: a shape that the reshape does not fit.
        """
        shape = value.shape
        if len(shape) != self.rank:
            if self.is_batching and len(shape) == self.rank - 1:
                shape = (1, *shape)
            elif not self.is_batching and len(shape) == self.rank + 1 and shape[0] == 1:
                shape = shape[1:]
        return value.under(self.name, shape if self.reshape is None else self._reshaped(value.shape, shape))

    def _reshaped(self, given: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        assert self.reshape is not None
        leading = int(self.is_batching)
        wanted = self.reshape.source
        if len(shape) != self.rank or any(
            size != dim for size, dim in zip(shape[leading:], wanted, strict=True) if dim != -1
        ):
            raise Internal(
                f"'{self.name}' has a reshape from {format_shape(wanted)}, but its tensor '{self.tensor}' has shape "
                f"{format_shape(given)}"
            )
        return self.reshape.shape(shape, leading)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `outputs` maps its model's outputs to ensemble tensors; `model_version` is -1 for the latest."""

    index: int
    model_name: str
    model_version: int
    inputs: tuple[Port, ...]
    outputs: Mapping[str, str]
    reads: tuple[str, ...]
    requires: frozenset[str]
    condition: StepCondition | None
    depth: int
    is_decoupled: bool
    omits_skipped: bool  # outputs, as an ensemble whose conditions skip steps
    takes_device_tensors: bool
    model_output_count: int

    @property
    def label(self) -> str:
        """How errors name it."""
        return f"step {self.index}, model '{self.model_name}'"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A step in a plan, or (`step` None) the response, which waits for all outputs of its iteration.

    `requested_outputs` are those of the model's outputs that the plan needs, empty for all; `outer` are the reads that
    an iteration around its own gives. Its model may leave the `device_outputs` where it computes, as nobody but models
    that take them from there reads them, and `device_results` where the response may have them there, too;
    `has_device_reads` says that some of its reads may be such.
    """

    place: int
    step: Step | None
    depth: int
    reads: tuple[str, ...]
    outer: tuple[str, ...]
    requires: frozenset[str]
    condition: StepCondition | None
    outputs: Mapping[str, str]
    requested_outputs: tuple[str, ...]
    device_outputs: frozenset[str] = frozenset()
    device_results: frozenset[str] = frozenset()
    has_device_reads: bool = False

    @property
    def is_decoupled(self) -> bool:
        return self.step is not None and self.step.is_decoupled


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What runs for one set of outputs. `nodes` are in an order in which they can run, the response last.

    `writers` counts those of a tensor that has several; `uses` counts the readers of each tensor that is not needed
    after them. `is_parallel`: more than one step may run at a time.
    """

    nodes: tuple[Node, ...]
    by_depth: tuple[tuple[Node, ...], ...]
    readers: Mapping[str, tuple[Node, ...]]
    writers: Mapping[str, int]
    uses: Mapping[str, int]
    outputs: tuple[Port, ...]
    is_parallel: bool

    @property
    def response(self) -> Node:
        return self.nodes[-1]

    @property
    def depth(self) -> int:
        """The depth of the response: 0 where there is one for each request."""
        return len(self.by_depth) - 1


class EnsembleGraph:
    """The steps of one ensemble, bound to the configurations of their models (one for each step). The models of the
    steps `on_device` take tensors where they lie on a device.

    Raises:
        InvalidArgument: as `check_composition`, which should have judged them before.
    """

    def __init__(
        self, config: ModelConfig, composing: Sequence[ModelConfig], *, on_device: Collection[int] = ()
    ) -> None:
        assert config.ensemble_scheduling is not None
        wired = wire(config, optional_inputs(composing))
        chains, of_tensors = decoupled_chains(config, composing)
        self.inputs = tuple(tensor.name for tensor in config.input)
        self.reshaped_inputs = {
            tensor.name: _input_port(config, tensor) for tensor in config.input if tensor.reshape is not None
        }
        self.outputs = tuple(_output_port(config, output) for output in config.output)
        self.steps = tuple(
            _step(
                index, step, wired[index], composing[index], depth=len(chains[index]), is_on_device=index in on_device
            )
            for index, step in enumerate(config.ensemble_scheduling.step)
        )
        readers = [step for step in self.steps if not set(self.inputs).isdisjoint(step.reads)]
        self.takes_device_tensors = bool(readers) and all(step.takes_device_tensors for step in readers)
        self._order, _ = running_order(wired, self.inputs)
        self._tensor_depth = {tensor: len(chain) for tensor, chain in of_tensors.items()}
        self._plans: dict[frozenset[str], Plan] = {}
        self._whole = self._make_plan(self.outputs)

    def plan(self, requested: Sequence[str]) -> Plan:
        """What to run for these outputs of the ensemble; none named means all. Steps that they do not need are left
        out."""
        if not requested:
            return self._whole
        key = frozenset(requested)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_KEPT_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._make_plan([port for port in self.outputs if port.name in key])
        return plan

    def _make_plan(self, outputs: Sequence[Port]) -> Plan:
        needed = {port.tensor for port in outputs}
        chosen: list[Step] = []
        for index in reversed(self._order):
            step = self.steps[index]
            if not needed.isdisjoint(step.outputs.values()):
                needed.update(step.reads)
                chosen.append(step)
        chosen.reverse()
        depth = max((self._tensor_depth[port.tensor] for port in outputs), default=0)
        kept = _kept_on_device(chosen)
        results = {port.tensor for port in outputs}
        nodes = [self._node(place, step, needed, kept, results) for place, step in enumerate(chosen)]
        reads = tuple(port.tensor for port in outputs)
        nodes.append(
            Node(len(nodes), None, depth, reads, self._outer(reads, depth), frozenset(), None, {}, ()),
        )
        writers = Counter(tensor for node in nodes for tensor in node.outputs.values())
        readers: dict[str, list[Node]] = {}
        for node in nodes:
            for tensor in node.reads:
                readers.setdefault(tensor, []).append(node)
        return Plan(
            nodes=tuple(nodes),
            by_depth=tuple(tuple(node for node in nodes if node.depth == level) for level in range(depth + 1)),
            readers={tensor: tuple(found) for tensor, found in readers.items()},
            writers={tensor: count for tensor, count in writers.items() if count > 1},
            uses={
                tensor: len(found)
                for tensor, found in readers.items()
                if tensor not in reads and all(node.depth == self._tensor_depth[tensor] for node in found)
            },
            outputs=tuple(outputs),
            is_parallel=_is_parallel(nodes),
        )

    def _node(self, place: int, step: Step, needed: set[str], kept: set[str], results: set[str]) -> Node:
        outputs = {name: tensor for name, tensor in step.outputs.items() if tensor in needed}
        on_device = {name: tensor for name, tensor in outputs.items() if tensor in kept}
        return Node(
            place,
            step,
            step.depth,
            step.reads,
            self._outer(step.reads, step.depth),
            step.requires,
            step.condition,
            outputs,
            tuple(outputs) if len(outputs) < step.model_output_count else (),
            frozenset(name for name, tensor in on_device.items() if tensor not in results),
            frozenset(name for name, tensor in on_device.items() if tensor in results),
            not kept.isdisjoint(step.reads),
        )

    def _outer(self, reads: Sequence[str], depth: int) -> tuple[str, ...]:
        return tuple(tensor for tensor in reads if self._tensor_depth[tensor] < depth)


def _kept_on_device(steps: Sequence[Step]) -> set[str]:
    """The tensors that all steps which read them accept on a device; a condition is read on the host."""
    kept = {tensor for step in steps for tensor in step.outputs.values()}
    for step in steps:
        if not step.takes_device_tensors:
            kept.difference_update(step.reads)
        if step.condition is not None:
            kept.discard(step.condition.tensor)
    return kept


def _step(
    index: int, step: EnsembleStep, wiring: StepWiring, model: ModelConfig, *, depth: int, is_on_device: bool
) -> Step:
    # In the order of the model's configuration, which is that in which it wants them.
    inputs = [_port(model, step.input_map[taken.name], taken) for taken in model.input if taken.name in step.input_map]
    return Step(
        index=index,
        model_name=step.model_name,
        model_version=step.model_version,
        inputs=tuple(inputs),
        outputs=dict(step.output_map),
        reads=wiring.reads,
        requires=wiring.requires,
        condition=wiring.condition,
        depth=depth,
        is_decoupled=model.is_decoupled,
        omits_skipped=model.is_ensemble,
        takes_device_tensors=is_on_device,
        model_output_count=len(model.output),
    )


def _port(model: ModelConfig, tensor: str, end: ModelInput | ModelOutput) -> Port:
    return Port(end.name, tensor, len(end.dims) + model.is_batching, model.is_batching)


def _input_port(ensemble: ModelConfig, tensor: ModelInput) -> Port:
    """Where a client's tensor enters."""
    reshape = None if tensor.reshape is None else Reshape(tensor.dims, tensor.reshape.shape)
    return Port(tensor.name, tensor.name, len(tensor.dims) + ensemble.is_batching, ensemble.is_batching, reshape)


def _output_port(ensemble: ModelConfig, tensor: ModelOutput) -> Port:
    """Where a tensor leaves, in the response."""
    reshape = None if tensor.reshape is None else Reshape(tensor.reshape.shape, tensor.dims)
    rank = len(tensor.backend_dims) + ensemble.is_batching
    return Port(tensor.name, tensor.name, rank, ensemble.is_batching, reshape)


def _is_parallel(nodes: Sequence[Node]) -> bool:
    """Whether some step does not wait for the one before it, may be done with before that, or runs again and again."""
    steps = nodes[:-1]
    return any(node.is_decoupled or node.condition is not None for node in steps) or any(
        set(before.outputs.values()).isdisjoint(node.reads) for before, node in pairwise(steps)
    )
