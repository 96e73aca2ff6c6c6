"""CUDA graph policy: which graphs are captured at load, and which one runs a batch.

A graph is captured for one set of shapes. With a lower bound it also serves smaller ones: what is missing is zeros.
Source: Triton's `ModelOptimizationPolicy.Cuda`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backends.tensorrt.description import EngineDescription, EngineTensor
from backends.tensorrt.profiles import Extents, is_within
from protocol.errors import InvalidArgument
from repository.model_config import Dims, GraphSpec, GraphSpecShape, ModelConfig, OptimizationCuda

# What is captured where no scheduler and no specification says which sizes there will be.
_USUAL_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """One graph to capture: the shape of each input, and the least that it may serve (the same where that is all)."""

    profile: int
    shapes: Mapping[str, Dims]
    least: Mapping[str, Dims]

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def serves(self, extents: Extents) -> bool:
        return extents.keys() == self.shapes.keys() and all(
            len(extent) == len(self.shapes[name])
            and all(a <= b <= c for a, b, c in zip(self.least[name], extent, self.shapes[name], strict=True))
            for name, extent in extents.items()
        )


def graph_plans(
    config: ModelConfig, cuda: OptimizationCuda, description: EngineDescription, profiles: Sequence[int]
) -> tuple[GraphPlan, ...]:
    """The graphs for these profiles; none without `graphs`, nor for an engine with shape tensors. A profile has those
    whose shapes it allows.

    Raises:
        InvalidArgument: a specification contradicts the model's `max_batch_size`, the engine's inputs, all profiles or
            itself.
    """
    for spec in cuda.graph_spec:
        _check(config, spec, description)
    if not cuda.graphs or description.has_shape_tensors:
        return ()
    specs = cuda.graph_spec or [GraphSpec(batch_size=size) for size in _default_sizes(config)]
    found: dict[tuple[int, tuple[Dims, ...]], GraphPlan] = {}
    for spec in specs:
        plans = [_plan(config, spec, description, profile) for profile in profiles]
        allowed = [plan for plan in plans if is_within(description, plan.profile, plan.shapes)]
        if cuda.graph_spec and not allowed:
            raise InvalidArgument(
                f"no optimization profile of {', '.join(map(str, profiles))} allows the shapes of a graph spec: "
                f"{', '.join(f'{name} {list(shape)}' for name, shape in plans[0].shapes.items())} "
                f"(model '{config.name}')"
            )
        for plan in allowed:
            found.setdefault((plan.profile, tuple(plan.shapes.values())), plan)
    return tuple(found.values())


def choose_graph(plans: Iterable[GraphPlan], profile: int, extents: Extents) -> GraphPlan | None:
    """The smallest that serves these shapes with this profile."""
    serving = [plan for plan in plans if plan.profile == profile and plan.serves(extents)]
    return min(serving, key=lambda plan: plan.size, default=None)


def _default_sizes(config: ModelConfig) -> tuple[int, ...]:
    most = config.max_batch_size
    if not most:
        return (0,)
    sequences = config.sequence_batching
    batching = config.dynamic_batching or (sequences.oldest if sequences is not None else None)
    if batching is not None:
        wanted = {1, *batching.preferred_batch_size, most}
    else:
        wanted = {size for size in _USUAL_SIZES if size <= most}
    return tuple(sorted(size for size in wanted if size <= most))


def _check(config: ModelConfig, spec: GraphSpec, description: EngineDescription) -> None:
    about = f"(model '{config.name}')"
    most = config.max_batch_size
    if not most and spec.batch_size:
        raise InvalidArgument(
            f"graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0, got {spec.batch_size} {about}"
        )
    if most and not 1 <= spec.batch_size <= most:
        raise InvalidArgument(
            f"graph spec expects 'batch_size' to be >= 1 and <= {most}, got {spec.batch_size} {about}"
        )
    _check_inputs(spec.input, description, about)
    if (lower := spec.graph_lower_bound) is None:
        return
    if not most and lower.batch_size:
        raise InvalidArgument(
            f"graph lower bound spec expects 'batch_size' to be 0 if 'max_batch_size' is 0, got {lower.batch_size} "
            f"{about}"
        )
    if lower.batch_size > spec.batch_size or (most and lower.batch_size < 1):
        raise InvalidArgument(
            f"graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size' {spec.batch_size}"
            f"{' and >= 1' if most else ''}, got {lower.batch_size} {about}"
        )
    _check_inputs(lower.input, description, about)
    for name, shape in spec.input.items():
        if name not in lower.input:
            raise InvalidArgument(f"graph lower bound spec expects shape for input '{name}' {about}")
        least = lower.input[name].dim
        if len(least) != len(shape.dim) or any(a > b for a, b in zip(least, shape.dim, strict=True)):
            raise InvalidArgument(
                f"graph lower bound spec expects the shape for input '{name}' to be <= {list(shape.dim)}, "
                f"got {list(least)} {about}"
            )


def _check_inputs(given: Mapping[str, GraphSpecShape], description: EngineDescription, about: str) -> None:
    known = {tensor.name: tensor for tensor in description.inputs}
    for name in given:
        if name not in known:
            raise InvalidArgument(
                f"graph spec names the input '{name}', allowed inputs are: {', '.join(sorted(known))} {about}"
            )


def _plan(config: ModelConfig, spec: GraphSpec, description: EngineDescription, profile: int) -> GraphPlan:
    shapes: dict[str, Dims] = {}
    least: dict[str, Dims] = {}
    lower = spec.graph_lower_bound
    for tensor in description.inputs:
        shapes[tensor.name] = _shape(config, spec.batch_size, spec.input, tensor, profile)
        least[tensor.name] = (
            shapes[tensor.name]
            if lower is None
            else _shape(config, lower.batch_size, lower.input, tensor, profile, default=shapes[tensor.name])
        )
    return GraphPlan(profile, shapes, least)


def _shape(
    config: ModelConfig,
    rows: int,
    given: Mapping[str, GraphSpecShape],
    tensor: EngineTensor,
    profile: int,
    *,
    default: Dims = (),
) -> Dims:
    """An input's whole shape: the given one, or else the engine's, with the profile's optimum where it is open."""
    best = tensor.ranges[profile].optimum if tensor.ranges else tensor.shape
    whole = default or tuple(b if size == -1 else size for size, b in zip(tensor.shape, best, strict=True))
    if tensor.name in given:
        return (*((rows,) if config.is_batching else ()), *given[tensor.name].dim)
    return (rows, *whole[1:]) if config.is_batching and tensor.shape[0] == -1 else whole
