"""Validation rules for ensembles, as far as the ensemble's own configuration can break them.

Part of `repository.validation`; the rules between an ensemble and the models of its steps are in
`actors.ensemble.validation`. Source: Triton's `ModelEnsembling`. Ours are the rules for conditions, and that steps
which exclude each other may write the same tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import InvalidArgument
from repository.ensemble_parameters import max_inflight_bytes
from repository.ensemble_wiring import StepWiring, clashing_writer, find_cycle, guards, running_order, wire
from repository.model_config import ModelConfig


def validate_ensemble(config: ModelConfig) -> None:
    """Judge an ensemble; of other models, only that they are none.

    Raises:
        InvalidArgument: the first rule that is broken.
    """
    name = config.name
    if not config.is_ensemble:
        if config.ensemble_scheduling is not None:
            raise InvalidArgument(
                f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
            )
        return
    if config.ensemble_scheduling is None:
        raise InvalidArgument(f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble")
    if config.instance_group:
        raise InvalidArgument(f"instance group should not be specified for ensemble '{name}'")
    if config.optimization is not None:
        raise InvalidArgument(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise InvalidArgument(f"model_warmup can not be specified for ensemble '{name}'")
    for field in ("batch_input", "batch_output"):
        if getattr(config, field):
            raise InvalidArgument(f"{field} has no effect on ensemble '{name}' and should not be specified")
    if not config.ensemble_scheduling.step:
        raise InvalidArgument(f"must specify 'step' for ensemble '{name}'")
    for index, step in enumerate(config.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise InvalidArgument(f"must specify '{field}' in step {index} of ensemble '{name}'")
    max_inflight_bytes(config)
    _validate_graph(config, wire(config))


def _validate_graph(config: ModelConfig, steps: Sequence[StepWiring]) -> None:
    name = config.name
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    order, written = running_order(steps, inputs)
    _validate_writers(config, steps, order)
    writers = {tensor: step for step in steps for tensor in step.writes}
    read = {tensor for step in steps for tensor in step.reads}
    tensors = read | writers.keys()
    for tensor in config.input:
        if tensor.name not in tensors:
            # The single quote after the ensemble's name is Triton's, here and below.
            raise InvalidArgument(f"ensemble input '{tensor.name}' for ensemble {name}' is not used")
    for output in config.output:
        if output.name not in tensors:
            raise InvalidArgument(f"ensemble output '{output.name}' for ensemble {name}' is not used")
    _validate_acyclic(config, steps, order)
    for output in config.output:
        if output.name not in written:
            needed = writers[output.name].reads if output.name in writers else ()
            missing = [tensor for tensor in needed if tensor not in written]
            because = f": at least one of its depending tensors, '{missing[0]}', is not connected" if missing else ""
            raise InvalidArgument(f"output '{output.name}' for ensemble '{name}' is not written{because}")
    for unused in sorted(tensors - outputs):
        if unused not in written or unused not in read:
            raise InvalidArgument(f"ensemble tensor '{unused}' is unused in ensemble '{name}'")


def _validate_acyclic(config: ModelConfig, steps: Sequence[StepWiring], order: Sequence[int]) -> None:
    """No step waits for itself; ours, where Triton names a tensor that is then not written, or unused."""
    cycle = find_cycle(steps, order)
    if not cycle:
        return
    models = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
    names = [f"step {index} ('{models[index].model_name}')" for index, _ in cycle]
    if len(names) == 1:
        raise InvalidArgument(f"{names[0]} of ensemble '{config.name}' needs '{cycle[0][1]}', which it writes itself")
    links = [
        f"{name} needs '{tensor}' of {next_name}"
        for name, (_, tensor), next_name in zip(names, cycle, [*names[1:], names[0]], strict=True)
    ]
    raise InvalidArgument(f"steps of ensemble '{config.name}' wait for each other in a cycle: {', '.join(links)}")


def _validate_writers(config: ModelConfig, steps: Sequence[StepWiring], order: Sequence[int]) -> None:
    """Every tensor has one writer, or writers of which one at most runs."""
    inputs = {tensor.name for tensor in config.input}
    for index, step in enumerate(steps):
        for tensor in step.writes:
            if tensor in inputs:
                raise InvalidArgument(
                    f"ensemble tensor '{tensor}' is an input of ensemble '{config.name}' and cannot be written by step "
                    f"{index}"
                )
    found = clashing_writer(steps, guards(steps, order))
    if found is None:
        return
    index, tensor = found
    has_conditions = any(step.condition is not None for step in steps)
    hint = ", unless the conditions of the steps that write it exclude each other" if has_conditions else ""
    raise InvalidArgument(
        f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{config.name}' step "
        f"{index}{hint}"
    )
