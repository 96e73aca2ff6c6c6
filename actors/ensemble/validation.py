"""Validation of an ensemble against the models of its steps: datatypes, shapes, and decoupled steps.

Flow: model manager loads the composing models → [ensemble validation] → ensemble graph. Texts are Triton's, but where
it has no such rule: conditions, and decoupled steps beside each other.
Source: Triton's `ModelEnsembling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import msgspec

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.ensemble_wiring import StepWiring, clashing_writer, guards, running_order, wire
from repository.model_config import Dims, EnsembleStep, ModelConfig, ModelInput, ModelOutput, ModelTransactionPolicy

# The decoupled steps that a tensor has come through, each of which gives it anew with every response.
Chain = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _End:
    """One end of an ensemble tensor: the model that gives or takes it, and as what."""

    model: str
    is_batching: bool
    data_type: DataType
    dims: Dims

    @property
    def full_dims(self) -> Dims:
        return (-1, *self.dims) if self.is_batching else self.dims


def check_composition(config: ModelConfig, composing: Sequence[ModelConfig]) -> ModelConfig:
    """Judge a valid ensemble together with its steps' models, one for each step.

    Returns the configuration with its `model_transaction_policy`: decoupled if a step is.

    Raises:
        InvalidArgument: the first rule that is broken, naming step and tensor.
    """
    assert config.ensemble_scheduling is not None
    steps = config.ensemble_scheduling.step
    for index, (step, model) in enumerate(zip(steps, composing, strict=True)):
        _check_maps(config, index, step, model)
    for model in composing:
        if 0 < model.max_batch_size < config.max_batch_size:
            raise InvalidArgument(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{model.name} which only allows maximum batch size to be {model.max_batch_size}"
            )
    _check_ends(config, steps, composing)
    wired = wire(config, optional_inputs(composing))
    order, _ = running_order(wired, [tensor.name for tensor in config.input])
    _check_writers(config, wired, order)
    decoupled_chains(config, composing)
    _check_response_cache(config, composing)
    is_decoupled = config.is_decoupled or any(model.is_decoupled for model in composing)
    return msgspec.structs.replace(config, model_transaction_policy=ModelTransactionPolicy(is_decoupled))


def optional_inputs(composing: Sequence[ModelConfig]) -> list[frozenset[str]]:
    """Each step's inputs that may be left out."""
    return [frozenset(tensor.name for tensor in model.input if tensor.optional) for model in composing]


def decoupled_chains(config: ModelConfig, composing: Sequence[ModelConfig]) -> tuple[list[Chain], dict[str, Chain]]:
    """Through which decoupled steps each step's inputs and each tensor have come, outermost first.

    Raises:
        InvalidArgument: tensors meet that have come through different ones, so that no iteration has them all.
    """
    wired = wire(config, optional_inputs(composing))
    order, _ = running_order(wired, [tensor.name for tensor in config.input])
    of_tensors: dict[str, Chain] = {tensor.name: () for tensor in config.input}
    of_steps: list[Chain] = [()] * len(wired)
    for index in order:
        step = wired[index]
        model = composing[index]
        longest = max((of_tensors[tensor] for tensor in step.reads), key=len, default=())
        if any(of_tensors[tensor] != longest[: len(of_tensors[tensor])] for tensor in step.reads):
            raise InvalidArgument(
                f"in ensemble {config.name}, step of model '{model.name}' receives inputs originated from different "
                "decoupled models"
            )
        of_steps[index] = longest
        written = (*longest, index) if model.is_decoupled else longest
        for tensor in step.writes:
            if of_tensors.setdefault(tensor, written) != written:
                raise InvalidArgument(
                    f"in ensemble {config.name}, ensemble tensor {tensor} is written by steps that receive inputs "
                    "originated from different decoupled models"
                )
    outputs = sorted((of_tensors[tensor.name], tensor.name) for tensor in config.output)
    for (chain, name), (longer, other) in pairwise(outputs):
        if chain != longer[: len(chain)]:
            raise InvalidArgument(
                f"in ensemble {config.name}, outputs '{name}' and '{other}' originate from different decoupled models, "
                "so no response could have them both"
            )
    return of_steps, of_tensors


def _check_maps(config: ModelConfig, index: int, step: EnsembleStep, model: ModelConfig) -> None:
    here = f"in ensemble {config.name},"
    inputs = {tensor.name for tensor in model.input}
    outputs = {tensor.name for tensor in model.output}
    for name, tensor in sorted(step.input_map.items()):
        if name not in inputs:
            raise InvalidArgument(
                f"{here} ensemble tensor {tensor} is mapping to non-existing input {name} in model {model.name}"
            )
    for model_input in model.input:
        if model_input.name not in step.input_map and not model_input.optional:
            raise InvalidArgument(
                f"{here} input {model_input.name} in model {model.name} is not mapped to any ensemble tensors"
            )
    written: set[str] = set()
    for name, tensor in sorted(step.output_map.items()):
        if name not in outputs:
            raise InvalidArgument(
                f"{here} ensemble tensor {tensor} is mapped from non-existing output {name} in model {model.name}"
            )
        if tensor in written:
            raise InvalidArgument(
                f"{here} multiple outputs in model {model.name} are mapped to the same ensemble tensor {tensor}"
            )
        written.add(tensor)


def _check_ends(config: ModelConfig, steps: Sequence[EnsembleStep], composing: Sequence[ModelConfig]) -> None:
    """Producer and consumer of a tensor must agree on its datatype and its shape."""
    givers: dict[str, list[_End]] = {tensor.name: [_own_end(config, tensor)] for tensor in config.input}
    takers: dict[str, list[_End]] = {}
    for step, model in zip(steps, composing, strict=True):
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for name, tensor in sorted(step.input_map.items()):
            takers.setdefault(tensor, []).append(_end(model, inputs[name]))
        for name, tensor in sorted(step.output_map.items()):
            givers.setdefault(tensor, []).append(_end(model, outputs[name]))
    for output in config.output:
        takers.setdefault(output.name, []).append(_own_end(config, output))
    for tensor, ends in givers.items():
        giver, *others = ends
        for other in (*others, *takers.get(tensor, ())):
            _check_pair(config, tensor, giver, other)
    for wiring in wire(config):
        if wiring.condition is not None:
            _check_condition(config, wiring.condition.tensor, givers[wiring.condition.tensor][0])


def _end(model: ModelConfig, tensor: ModelInput | ModelOutput) -> _End:
    return _End(model.name, model.is_batching, tensor.data_type, tensor.dims)


def _own_end(config: ModelConfig, tensor: ModelInput | ModelOutput) -> _End:
    """The end at the ensemble itself: its steps see the shape behind its `reshape`, as a model's backend does."""
    return _End(config.name, config.is_batching, tensor.data_type, tensor.backend_dims)


def _check_pair(config: ModelConfig, tensor: str, one: _End, other: _End) -> None:
    here = f"in ensemble {config.name}, ensemble tensor {tensor}:"
    if one.data_type is not other.data_type:
        raise InvalidArgument(
            f"{here} inconsistent data type: {_type_name(one)} is inferred from model {one.model} while "
            f"{_type_name(other)} is inferred from model {other.model}"
        )
    if not (_agree(one.dims, other.dims) or _agree(one.full_dims, other.full_dims)):
        raise InvalidArgument(
            f"{here} inconsistent shape: {_shape(one.full_dims)} is inferred from model {one.model} while "
            f"{_shape(other.full_dims)} is inferred from model {other.model}"
        )


def _check_condition(config: ModelConfig, tensor: str, giver: _End) -> None:
    where = f"in ensemble {config.name}, ensemble tensor {tensor} is a condition and must be TYPE_BOOL with one element"
    if giver.data_type is not DataType.BOOL:
        raise InvalidArgument(f"{where}, but it is {_type_name(giver)} in model {giver.model}")
    if -1 not in giver.dims and prod(giver.dims) != 1:
        raise InvalidArgument(f"{where}, but it has shape {_shape(giver.dims)} in model {giver.model}")


def _check_writers(config: ModelConfig, wired: Sequence[StepWiring], order: Sequence[int]) -> None:
    """As at configuration time, but an optional input now passes no condition on."""
    found = clashing_writer(wired, guards(wired, order))
    if found is not None:
        raise InvalidArgument(
            f"ensemble tensor '{found[1]}' can appear in an output map only once for ensemble '{config.name}' step "
            f"{found[0]}, unless the conditions of the steps that write it exclude each other"
        )


def _check_response_cache(config: ModelConfig, composing: Sequence[ModelConfig]) -> None:
    if config.response_cache is None or not config.response_cache.enable:
        return
    for model in composing:
        if model.is_decoupled or model.sequence_batching is not None:
            obstacle = "'decoupled' transaction policy" if model.is_decoupled else "sequence batching scheduler"
            raise InvalidArgument(
                f"Response Cache does not currently support model {config.name} with {obstacle} in the model "
                f"{model.name} of a step. Please disable the response cache."
            )


def _agree(one: Dims, other: Dims) -> bool:
    """Equal where neither is variable."""
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _type_name(end: _End) -> str:
    return str(end.data_type.value)


def _shape(dims: Dims) -> str:
    return f"[{','.join(map(str, dims))}]"
