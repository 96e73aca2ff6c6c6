"""One instance on its GPU: contexts, stream, memory, and how a batch goes through them.

    arrays of the host → [staging → GPU → engine or graph → host] → arrays of the host

Rules:

1. Each tensor has one piece of memory on the GPU, as large as its profiles allow, made before the first batch. One that
   grows all the same ends the graphs, which know it by its address.
2. Each profile has a context, and so has each graph: a context's state is that of the shapes it was captured with. An
   instance runs one batch at a time, so its graphs compute in the same memory.
3. What is put on the stream runs in its order; the thread waits once, for what comes last. What a copy reads is kept
   until then.
4. Outputs are copied into memory that is theirs alone, for the server sends it.

For the instance's thread. Not seen running on a GPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.interface import InstanceDied
from backends.tensorrt.batch_plan import Arrays, BatchPlan, cut_to, plan_batch
from backends.tensorrt.description import EngineTensor
from backends.tensorrt.device import CudaError, Device
from backends.tensorrt.engines import LoadedEngine
from backends.tensorrt.graphs import GraphPlan, graph_plans
from backends.tensorrt.library import Context, context_byte_size, host_values
from backends.tensorrt.options import TensorRTOptions
from protocol.core import MemoryUsage
from repository.model_config import Dims, ModelConfig

logger = logging.getLogger("trioton.tensorrt")


@dataclass(slots=True, eq=False)
class _Buffer:
    memory: Any
    byte_size: int


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """A captured graph with the shapes of its outputs. The context and its memory must outlive it."""

    plan: GraphPlan
    graph: Any
    outputs: Mapping[str, Dims]
    context: Context


class Execution:
    """What an instance computes with, made from a loaded engine that outlives it. `outputs` are those to read back."""

    def __init__(
        self,
        config: ModelConfig,
        loaded: LoadedEngine,
        options: TensorRTOptions,
        device: Device,
        profiles: tuple[int, ...],
        *,
        outputs: Iterable[str],
        instance: str,
    ) -> None:
        self._config = config
        self._description = loaded.description
        self._engine = loaded.engine
        self._options = options
        self._device = device
        self._profiles = profiles
        self._instance = instance
        self._inputs = {tensor.name: tensor for tensor in loaded.description.inputs}
        self._outputs = {tensor.name: tensor for tensor in loaded.description.outputs}
        self._wanted = frozenset(outputs)
        self._stream = device.stream(options.stream_priority)
        self._copy_stream = device.stream(options.stream_priority) if options.cuda.output_copy_stream else self._stream
        self._computed = device.event(spins=options.cuda.busy_wait_events)
        self._done = device.event(spins=options.cuda.busy_wait_events)
        self._contexts = {profile: self._context(profile) for profile in profiles}
        self._buffers: dict[str, _Buffer] = {}
        self._staging: Arrays = {}
        self._graph_memory: _Buffer | None = None
        self._graphs: list[_Graph] = []
        # What each context was last told, and what it answered.
        self._known: dict[int, tuple[Mapping[str, Dims], Mapping[str, Dims]]] = {}
        self._make_buffers()
        self._capture(graph_plans(config, options.cuda, loaded.description, profiles))

    def memory_usage(self) -> list[MemoryUsage]:
        """Of tensors and contexts; the engine's weights are not counted."""
        held = sum(buffer.byte_size for buffer in self._buffers.values())
        held += context_byte_size(self._engine) * len(self._contexts)
        held += self._graph_memory.byte_size if self._graph_memory is not None else 0
        found = [MemoryUsage("GPU", self._device.id, held)]
        if pinned := sum(array.nbytes for array in self._staging.values()):
            found.append(MemoryUsage("CPU_PINNED", 0, pinned))
        return found

    def run(self, inputs: Arrays) -> Arrays:
        """Compute one batch of arrays in the shapes of the configuration.

        Raises:
            InvalidArgument: no profile allows the shapes, or they do not fit each other.
            Internal: TensorRT refuses.
            InstanceDied: the device has failed.
        """
        plans = [graph.plan for graph in self._graphs]
        plan = plan_batch(self._config, self._description, self._profiles, plans, inputs, instance=self._instance)
        try:
            return self._run(plan)
        except CudaError as error:
            raise InstanceDied(f"model instance '{self._instance}' died: its GPU has failed: {error}") from error

    def _run(self, plan: BatchPlan) -> Arrays:
        graph = next((each for each in self._graphs if each.plan is plan.graph), None)
        if graph is not None and plan.shapes == graph.plan.shapes:
            return self._compute(plan, graph, graph.outputs, {})
        context = self._contexts[plan.profile]
        host_outputs = self._set_inputs(context, plan)
        shapes = self._output_shapes(context, plan)
        if graph is None:
            for name, shape in shapes.items():
                if -1 in shape:
                    context.bind_allocator(name, self._device)
                elif name not in host_outputs:
                    context.bind(name, self._memory(self._outputs[name], shape))
        return self._compute(plan, graph, shapes, host_outputs)

    def _compute(
        self, plan: BatchPlan, graph: _Graph | None, shapes: Mapping[str, Dims], host_outputs: Arrays
    ) -> Arrays:
        """`shapes` are those of the outputs for the batch as it is; a graph may compute larger ones."""
        context = self._contexts[plan.profile]
        kept = [self._copy_in(name, array) for name, array in plan.inputs.items() if self._is_on_gpu(name)]
        if graph is None:
            context.enqueue(self._stream)
        else:
            graph.graph.launch(self._stream)
        self._computed.record(self._stream)
        wanted = (shapes.keys() - host_outputs.keys()) & self._wanted
        unknown = {name: context.bind_allocator(name, self._device) for name in wanted if -1 in shapes[name]}
        if unknown:  # their sizes are known when they are computed
            self._computed.synchronize()
        elif self._copy_stream is not self._stream:
            self._copy_stream.wait_event(self._computed)
        found = dict(host_outputs)
        for name in wanted:
            if name in unknown:
                address, shape = unknown[name].memory.ptr, unknown[name].shape
            else:
                address = self._buffers[name].memory.ptr
                shape = shapes[name] if graph is None else graph.outputs[name]
            found[name] = self._copy_out(self._outputs[name], address, shape)
        self._done.record(self._copy_stream)
        self._done.synchronize()
        del kept
        return {name: array if name in unknown else cut_to(array, shapes[name]) for name, array in found.items()}

    def _set_inputs(self, context: Context, plan: BatchPlan) -> Arrays:
        """Addresses, and values of shape tensors; the arrays that shape tensors among the outputs are written to."""
        for name, array in plan.inputs.items():
            if self._is_on_gpu(name):
                context.bind(name, self._memory(self._inputs[name], array.shape))
            else:
                context.bind_host(name, array)
        host_outputs = {
            name: host_values(tensor.shape, tensor.data_type)
            for name, tensor in self._outputs.items()
            if tensor.is_shape_tensor
        }
        for name, array in host_outputs.items():
            context.bind_host(name, array)
        return host_outputs

    def _output_shapes(self, context: Context, plan: BatchPlan) -> Mapping[str, Dims]:
        """What the engine makes of the batch's shapes; it is not asked twice in a row for the same."""
        known = self._known.get(plan.profile)
        if known is not None and known[0] == plan.shapes:
            return known[1]
        self._known.pop(plan.profile, None)
        context.set_shapes({name: shape for name, shape in plan.shapes.items() if self._is_on_gpu(name)})
        context.infer_shapes()
        found = {name: context.output_shape(name) for name in self._outputs}
        if not self._description.has_shape_tensors:
            self._known[plan.profile] = (plan.shapes, found)
        return found

    def _is_on_gpu(self, name: str) -> bool:
        return not self._inputs[name].is_shape_tensor

    def _copy_in(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """The array that is read until the stream has come so far."""
        source = array
        if self._options.pins_inputs and array.nbytes:
            source = self._staging[name][: array.nbytes].view(array.dtype).reshape(array.shape)
            source[...] = array
        self._device.copy_in(self._buffers[name].memory.ptr, source, self._stream)
        return source

    def _copy_out(self, tensor: EngineTensor, address: int, shape: Dims) -> NDArray[Any]:
        made = self._device.host_array(shape, tensor.data_type.dtype, is_pinned=self._options.pins_outputs)
        self._device.copy_out(made, address, self._copy_stream)
        return made

    def _memory(self, tensor: EngineTensor, shape: Dims) -> int:
        """The address of a tensor's memory, which is large enough for this shape then."""
        needed = math.prod(shape) * tensor.data_type.dtype.itemsize
        buffer = self._buffers.get(tensor.name)
        if buffer is None or buffer.byte_size < needed:
            self._graphs.clear()
            buffer = self._buffers[tensor.name] = _Buffer(self._device.memory(needed), needed)
            if tensor.is_input and self._options.pins_inputs:
                size = max(needed, 1)
                self._staging[tensor.name] = self._device.host_array((size,), np.dtype(np.uint8), is_pinned=True)
        return int(buffer.memory.ptr)

    def _make_buffers(self) -> None:
        """For the largest shapes of each profile, as far as they say."""
        for profile, context in self._contexts.items():
            largest = {
                name: tensor.ranges[profile].maximum if tensor.ranges else tensor.shape
                for name, tensor in self._inputs.items()
                if not tensor.is_shape_tensor
            }
            context.set_shapes(largest)
            for name, shape in largest.items():
                self._memory(self._inputs[name], shape)
            if self._description.has_shape_tensors:
                continue  # the values decide on the sizes
            for name, tensor in self._outputs.items():
                shape = context.output_shape(name)
                if -1 not in shape:
                    self._memory(tensor, shape)

    def _context(self, profile: int, memory: Any = None) -> Context:
        return Context(
            self._engine,
            profile,
            self._stream,
            strategy=self._options.allocation_strategy,
            instance=self._instance,
            memory=memory,
        )

    def _capture(self, plans: tuple[GraphPlan, ...]) -> None:
        """What cannot be captured is told, and runs without a graph."""
        if not plans:
            return
        needed = context_byte_size(self._engine)
        self._graph_memory = _Buffer(self._device.memory(needed), needed)
        captured = [self._captured(plan) for plan in plans]
        self._graphs = [graph for graph in captured if graph is not None]

    def _captured(self, plan: GraphPlan) -> _Graph | None:
        assert self._graph_memory is not None
        context = self._context(plan.profile, self._graph_memory.memory)
        context.set_shapes(plan.shapes)
        context.infer_shapes()
        for name in self._inputs:
            context.bind(name, self._buffers[name].memory.ptr)
        for name in self._outputs:
            if name not in self._buffers:
                logger.warning("no CUDA graph for %s: the size of '%s' depends on the data", self._instance, name)
                return None
            context.bind(name, self._buffers[name].memory.ptr)
        context.enqueue(self._stream)  # TensorRT first does what a graph may not hold
        self._stream.synchronize()
        try:
            self._device.begin_capture(self._stream)
            try:
                context.enqueue(self._stream)
            finally:
                graph = self._stream.end_capture()
        except Exception as error:
            sizes = ", ".join(f"'{name}' {list(shape)}" for name, shape in plan.shapes.items())
            logger.warning("no CUDA graph for %s with %s: %s", self._instance, sizes, error)
            return None
        return _Graph(plan, graph, {name: context.output_shape(name) for name in self._outputs}, context)
