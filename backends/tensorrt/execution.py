"""Execution of batches by one instance on its GPU: contexts and CUDA graphs.

    tensors of the device → [bound where they are → engine, or copied to a graph's → graph] → tensors of the device

Rules:

1. Inputs are read where they lie. Each batch's outputs are memory of their own, for the server hands them on. All of it
   is the stream's, and so the server's pool.
2. A graph knows its tensors by their addresses: each has one piece of memory for all graphs of the instance, which a
   batch is copied into, and its results out of.
3. Each profile has a context, and so has each graph: a context's state is that of the shapes it was captured with. An
   instance runs one batch at a time, so its graphs compute in the same memory.
4. What is put on the stream runs in its order; the thread waits once, for what comes last, and what is read is kept
   until then. Only an output whose size depends on the data is waited for before it is copied.

For the instance's thread. Not seen running on a GPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from backends.devices.stream import DeviceStream
from backends.tensorrt.batch_plan import BatchPlan, Values, plan_batch
from backends.tensorrt.description import EngineTensor
from backends.tensorrt.engines import LoadedEngine
from backends.tensorrt.graphs import GraphPlan, graph_plans
from backends.tensorrt.library import Context, context_byte_size, host_values
from backends.tensorrt.options import TensorRTOptions
from backends.tensorrt.regions import pieces
from protocol.core import MemoryUsage
from protocol.errors import Internal, Overloaded, Unavailable
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor, device_tensor
from repository.model_config import Dims, ModelConfig

logger = logging.getLogger("trioton.tensorrt")


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """A captured graph with the shapes of its outputs. The context and its memory must outlive it."""

    plan: GraphPlan
    launch: Callable[[], None]
    outputs: Mapping[str, Dims]
    context: Context


class Execution:
    """What an instance computes with, made from a loaded engine that outlives it. `outputs` are those to give."""

    def __init__(
        self,
        config: ModelConfig,
        loaded: LoadedEngine,
        options: TensorRTOptions,
        stream: DeviceStream,
        profiles: tuple[int, ...],
        *,
        outputs: Iterable[str],
        instance: str,
    ) -> None:
        self._config = config
        self._description = loaded.description
        self._engine = loaded.engine
        self._options = options
        self._stream = stream
        self._profiles = profiles
        self._instance = instance
        self._inputs = {tensor.name: tensor for tensor in loaded.description.inputs}
        self._outputs = {tensor.name: tensor for tensor in loaded.description.outputs}
        self._wanted = frozenset(outputs)
        self._contexts = {profile: self._context(profile) for profile in profiles}
        # What each context was last told, and what it answered.
        self._known: dict[int, tuple[Mapping[str, Dims], Mapping[str, Dims]]] = {}
        self._graph_tensors: dict[str, DeviceBuffer] = {}
        self._graph_memory: DeviceBuffer | None = None
        self._graphs = self._captured(graph_plans(config, options.cuda, loaded.description, profiles))

    def memory_usage(self) -> list[MemoryUsage]:
        """Memory of contexts and graphs; the tensors of batches and the engine's weights are not counted."""
        held = context_byte_size(self._engine) * len(self._contexts)
        held += sum(buffer.byte_size for buffer in self._graph_tensors.values())
        held += self._graph_memory.byte_size if self._graph_memory is not None else 0
        return [MemoryUsage("GPU", self._stream.device[1], held)]

    def run(self, inputs: Values) -> dict[str, Any]:
        """Compute one batch in the shapes of the configuration. Its outputs are device tensors, complete, and for shape
        tensors arrays.

        Raises:
            InvalidArgument: no profile allows the shapes, or they do not fit each other.
            Internal: TensorRT refuses.
            Overloaded: the device has no memory left.
            Unavailable: the device has failed.
        """
        plans = [graph.plan for graph in self._graphs]
        plan = plan_batch(self._config, self._description, self._profiles, plans, inputs, instance=self._instance)
        graph = next((each for each in self._graphs if each.plan is plan.graph), None)
        found = self._run(plan) if graph is None else self._run_graph(plan, graph)
        self._stream.synchronize()
        return found

    def _run(self, plan: BatchPlan) -> dict[str, Any]:
        context = self._contexts[plan.profile]
        for name, tensor in plan.tensors.items():
            self._stream.hold(tensor.buffer)
            context.bind(name, self._address(tensor.buffer))
        found: dict[str, Any] = self._bind_host_values(context, plan)
        unknown: list[str] = []
        for name, shape in self._output_shapes(context, plan).items():
            if -1 in shape:
                context.bind_allocator(name, self._stream)
                unknown.append(name)
            elif name not in found:
                made = self._new(self._outputs[name], shape)
                context.bind(name, self._address(made.buffer))
                if name in self._wanted:
                    found[name] = made
        context.enqueue(self._stream)
        if unknown:  # their sizes are known when they are computed
            self._stream.synchronize()
        for name in self._wanted.intersection(unknown):
            memory, shape = context.allocated(name)
            found[name] = made = self._new(self._outputs[name], shape)
            self._stream.copy(made.buffer, memory.part(0, made.byte_size))
        return found

    def _run_graph(self, plan: BatchPlan, graph: _Graph) -> dict[str, Any]:
        shapes = graph.outputs
        if plan.shapes != graph.plan.shapes:
            shapes = self._output_shapes(self._contexts[plan.profile], plan)
        for name, tensor in plan.tensors.items():
            around = graph.plan.shapes[name]
            width, target = tensor.datatype.itemsize, self._graph_tensors[name]
            if tensor.shape != around:
                self._stream.clear(target.part(0, math.prod(around) * width))
            for inner, outer, length in pieces(tensor.shape, around):
                size = length * width
                self._stream.copy(target.part(outer * width, size), tensor.buffer.part(inner * width, size))
        graph.launch()
        found: dict[str, Any] = {}
        for name in self._wanted & shapes.keys():
            found[name] = made = self._new(self._outputs[name], shapes[name])
            width, source = made.datatype.itemsize, self._graph_tensors[name]
            for inner, outer, length in pieces(made.shape, graph.outputs[name]):
                size = length * width
                self._stream.copy(made.buffer.part(inner * width, size), source.part(outer * width, size))
        return found

    def _bind_host_values(self, context: Context, plan: BatchPlan) -> dict[str, NDArray[Any]]:
        """The values of shape tensors; the arrays that the ones among the outputs are written to."""
        made = {
            name: host_values(tensor.shape, tensor.data_type)
            for name, tensor in self._outputs.items()
            if tensor.is_shape_tensor
        }
        for name, array in {**plan.host_values, **made}.items():
            context.bind_host(name, array)
        return made

    def _output_shapes(self, context: Context, plan: BatchPlan) -> Mapping[str, Dims]:
        """What the engine makes of the batch's shapes; it is not asked twice in a row for the same."""
        known, shapes = self._known.get(plan.profile), plan.shapes
        if known is not None and known[0] == shapes:
            return known[1]
        self._known.pop(plan.profile, None)
        context.set_shapes(shapes)
        context.infer_shapes()
        found = {name: context.output_shape(name) for name in self._outputs}
        if not self._description.has_shape_tensors:
            self._known[plan.profile] = (shapes, found)
        return found

    def _new(self, tensor: EngineTensor, shape: Dims) -> DeviceTensor:
        """Kept until the stream was waited for."""
        buffer = self._stream.allocate(math.prod(shape) * tensor.data_type.itemsize)
        self._stream.hold(buffer)
        return device_tensor(tensor.name, tensor.data_type, shape, buffer)

    def _address(self, buffer: DeviceBuffer) -> int:
        """Every tensor wants an address, also one without elements."""
        if not buffer.byte_size:
            buffer = self._stream.allocate(1)
            self._stream.hold(buffer)
        return buffer.address

    def _context(self, profile: int, memory: DeviceBuffer | None = None) -> Context:
        return Context(
            self._engine,
            profile,
            self._stream,
            strategy=self._options.allocation_strategy,
            instance=self._instance,
            memory=memory,
        )

    def _captured(self, plans: tuple[GraphPlan, ...]) -> list[_Graph]:
        """What cannot be captured is told, and runs without a graph."""
        if not plans:
            return []
        self._graph_memory = self._stream.allocate(max(context_byte_size(self._engine), 1))
        prepared = [(plan, *self._prepared(plan, self._graph_memory)) for plan in plans]
        sizes: dict[str, int] = {}
        for plan, _, outputs in prepared:
            for name, shape in {**plan.shapes, **outputs}.items():
                if -1 in shape:
                    logger.warning("no CUDA graph for %s: the size of '%s' depends on the data", self._instance, name)
                    self._graph_memory = None
                    return []
                tensor = self._inputs.get(name) or self._outputs[name]
                sizes[name] = max(sizes.get(name, 1), math.prod(shape) * tensor.data_type.itemsize)
        self._graph_tensors = {name: self._stream.allocate(size) for name, size in sizes.items()}
        found = [self._capture(plan, context, outputs) for plan, context, outputs in prepared]
        return [graph for graph in found if graph is not None]

    def _prepared(self, plan: GraphPlan, memory: DeviceBuffer) -> tuple[Context, Mapping[str, Dims]]:
        context = self._context(plan.profile, memory)
        context.set_shapes(plan.shapes)
        context.infer_shapes()
        return context, {name: context.output_shape(name) for name in self._outputs}

    def _capture(self, plan: GraphPlan, context: Context, outputs: Mapping[str, Dims]) -> _Graph | None:
        for name, buffer in self._graph_tensors.items():
            context.bind(name, buffer.address)
        context.enqueue(self._stream)  # TensorRT first does what a graph may not hold
        try:
            launch = self._stream.capture(lambda: context.enqueue(self._stream))
        except Overloaded:
            raise
        except (Internal, Unavailable) as error:
            sizes = ", ".join(f"'{name}' {list(shape)}" for name, shape in plan.shapes.items())
            logger.warning("no CUDA graph for %s with %s: %s", self._instance, sizes, error)
            return None
        return _Graph(plan, launch, outputs, context)
