"""Rules for ensembles that the ensemble's own configuration can break.

Part of `repository.validation`; the rules between an ensemble and the models of its steps are checked at load.
Source: Triton's `ModelEnsembling`.
"""

from __future__ import annotations

from protocol.errors import InvalidArgument
from repository.model_config import EnsembleStep, ModelConfig


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
    if not config.ensemble_scheduling.step:
        raise InvalidArgument(f"must specify 'step' for ensemble '{name}'")
    for index, step in enumerate(config.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise InvalidArgument(f"must specify '{field}' in step {index} of ensemble '{name}'")
    _validate_graph(config, config.ensemble_scheduling.step)


def _validate_graph(config: ModelConfig, steps: tuple[EnsembleStep, ...]) -> None:
    name = config.name
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    producers = _producers(name, steps)
    read = {tensor for step in steps for tensor in step.input_map.values()}
    tensors = read | producers.keys()
    for tensor in config.input:
        if tensor.name not in tensors:
            # The single quote after the ensemble's name is Triton's, here and below.
            raise InvalidArgument(f"ensemble input '{tensor.name}' for ensemble {name}' is not used")
    for output in config.output:
        if output.name not in tensors:
            raise InvalidArgument(f"ensemble output '{output.name}' for ensemble {name}' is not used")
    written = _written(inputs, steps)
    for output in config.output:
        if output.name not in written:
            needed = producers[output.name].input_map.values() if output.name in producers else ()
            missing = [tensor for tensor in needed if tensor not in written]
            because = f": at least one of its depending tensors, '{missing[0]}', is not connected" if missing else ""
            raise InvalidArgument(f"output '{output.name}' for ensemble '{name}' is not written{because}")
    for unused in sorted(tensors - outputs):
        if unused not in written or unused not in read:
            raise InvalidArgument(f"ensemble tensor '{unused}' is unused in ensemble '{name}'")


def _producers(ensemble: str, steps: tuple[EnsembleStep, ...]) -> dict[str, EnsembleStep]:
    """The step that writes each tensor."""
    producers: dict[str, EnsembleStep] = {}
    for index, step in enumerate(steps):
        for tensor in step.output_map.values():
            if tensor in producers:
                raise InvalidArgument(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{ensemble}' "
                    f"step {index}"
                )
            producers[tensor] = step
    return producers


def _written(inputs: set[str], steps: tuple[EnsembleStep, ...]) -> set[str]:
    """The tensors that get a value, given the ensemble's inputs."""
    written = set(inputs)
    waiting = list(steps)
    while ready := [step for step in waiting if written.issuperset(step.input_map.values())]:
        written.update(tensor for step in ready for tensor in step.output_map.values())
        waiting = [step for step in waiting if step not in ready]
    return written
