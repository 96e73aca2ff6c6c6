"""Auto-completion, stage 2: completes a configuration from the signature of the model, and checks that they agree.

Flow: a backend opens the model and describes its tensors -> [completion] fills the configuration (auto-completion on)
and checks the final one (always, before the model serves). The rules are those of Triton's onnxruntime backend; any
backend that knows its model's tensors by name can use them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument
from repository.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelTensorReshape,
)
from repository.sequence_tensors import CONTROL_DIMS, control_inputs, state_inputs, state_outputs
from repository.shape_rules import fixed_rows, generated_inputs

logger = logging.getLogger(__name__)

DEFAULT_MAX_BATCH_SIZE = 4  # of the backend setting `default-max-batch-size`


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One tensor as the model declares it. `shape` is the whole shape, the batch dimension included, -1 where it is
    variable. `optional`: an input that the model has a value of its own for."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def can_batch(self) -> bool:
        return self.shape[:1] == (-1,)


def complete_from_model(
    config: ModelConfig,
    *,
    inputs: Sequence[TensorSignature],
    outputs: Sequence[TensorSignature],
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> ModelConfig:
    """Fill in inputs, outputs, max_batch_size and dynamic batching where the configuration leaves them out.

    A configuration with both inputs and outputs comes back as it is. A list is filled whole or not at all. Optional
    inputs are never filled in: the configuration names those that it wants to offer. Neither are the control and state
    tensors of `sequence_batching`, nor what is made for a batch (`batch_input`, shape rules).

    Raises:
        InvalidArgument: max_batch_size is set, but some tensor has no variable first dimension.
    """
    if config.input and config.output:
        logger.info(
            "skipping model configuration auto-complete for '%s': inputs and outputs already specified", config.name
        )
        return config
    inputs, outputs = _with_free_batch(config, inputs), _with_free_batch(config, outputs)
    required = [tensor for tensor in inputs if not tensor.optional]
    can_batch = bool(required) and all(tensor.can_batch for tensor in (*required, *outputs))
    if config.max_batch_size > 0 and not can_batch:
        raise InvalidArgument(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    max_batch_size = config.max_batch_size
    if can_batch and max_batch_size == 0 and default_max_batch_size > 0:
        max_batch_size = default_max_batch_size
        logger.info(
            "autofilled max_batch_size to %d for model '%s' since batching is supported but no max_batch_size is "
            "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max "
            "batch size",
            max_batch_size,
            config.name,
        )
    is_batching = max_batch_size > 0
    dynamic_batching = config.dynamic_batching
    if max_batch_size > 1 and config.sequence_batching is None and dynamic_batching is None:
        dynamic_batching = ModelDynamicBatching()
    hidden = {entry.name for entry in (*control_inputs(config), *state_inputs(config))} | set(generated_inputs(config))
    hidden_outputs = {entry.name for entry in state_outputs(config)}
    return msgspec.structs.replace(
        config,
        max_batch_size=max_batch_size,
        input=config.input or tuple(_model_input(entry, is_batching) for entry in required if entry.name not in hidden),
        output=config.output
        or tuple(_model_output(entry, is_batching) for entry in outputs if entry.name not in hidden_outputs),
        dynamic_batching=dynamic_batching,
    )


def adopt_completion(config: ModelConfig, completed: ModelConfig) -> ModelConfig:
    """Take from a backend's completion what a backend may set: max_batch_size, inputs, outputs, a scheduling choice
    where there is none, and the decoupled flag. All else stays as it was configured."""
    has_scheduling = (config.dynamic_batching, config.sequence_batching, config.ensemble_scheduling) != (None,) * 3
    scheduler = config if has_scheduling else completed
    return msgspec.structs.replace(
        config,
        max_batch_size=completed.max_batch_size,
        input=completed.input,
        output=completed.output,
        dynamic_batching=scheduler.dynamic_batching,
        sequence_batching=scheduler.sequence_batching,
        model_transaction_policy=completed.model_transaction_policy or config.model_transaction_policy,
    )


def check_against_model(
    config: ModelConfig, inputs: Sequence[TensorSignature], outputs: Sequence[TensorSignature]
) -> None:
    """Compare a final configuration with the model's tensors.

    Every input that is not optional must be configured, be it as a control or a state of `sequence_batching`; outputs
    may be left out. A variable dimension of an input or a state takes any configured value; all other dimensions must
    be equal.

    Raises:
        InvalidArgument: the two differ; the text names the tensor, and both sides.
        Internal: the model lacks a control.
    """
    inputs, outputs = _with_free_batch(config, inputs), _with_free_batch(config, outputs)
    controls, states = control_inputs(config), state_inputs(config)
    found_inputs = _match(config.input, inputs, "input")
    generated = generated_inputs(config)
    added = {entry.name for entry in (*controls, *states)} | set(generated)
    provided = sum(not entry.optional or entry in found_inputs or entry.name in added for entry in inputs)
    expected = len(config.input) + len(controls) + len(states) + len(generated)
    for name, data_type in generated.items():
        _check_generated(config, name, data_type, inputs)
    for control in controls:
        _check_control(config, control, inputs)
    found_states = _match(states, inputs, "input")
    if expected != provided:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides {provided}"
        )
    for state, signature in zip(states, found_states, strict=True):
        _check_data_type(config, state, signature, "input")
        _check_shape(config, state, signature)
    for model_input, signature in zip(config.input, found_inputs, strict=True):
        _check_optional(config, model_input, signature)
        _check_data_type(config, model_input, signature, "input")
        if model_input.allow_ragged_batch:
            _check_ragged(config, model_input, signature)
        else:
            _check_shape(config, model_input, signature)
    scattered = {target for entry in config.batch_output for target in entry.target_name}
    for model_output, signature in zip(config.output, _match(config.output, outputs, "output"), strict=True):
        _check_data_type(config, model_output, signature, "output")
        if model_output.name not in scattered:  # such an output has one dimension, and is cut up by its own rule
            _check_shape(config, model_output, signature)
    next_states = state_outputs(config)
    for next_state, signature in zip(next_states, _match(next_states, outputs, "output"), strict=True):
        _check_data_type(config, next_state, signature, "output")
        _check_shape(config, next_state, signature, takes_any=True)


def _model_input(tensor: TensorSignature, is_batching: bool) -> ModelInput:
    dims, reshape = _configured_dims(tensor, is_batching)
    return ModelInput(name=tensor.name, data_type=tensor.data_type, dims=dims, reshape=reshape)


def _model_output(tensor: TensorSignature, is_batching: bool) -> ModelOutput:
    dims, reshape = _configured_dims(tensor, is_batching)
    return ModelOutput(name=tensor.name, data_type=tensor.data_type, dims=dims, reshape=reshape)


def _configured_dims(tensor: TensorSignature, is_batching: bool) -> tuple[tuple[int, ...], ModelTensorReshape | None]:
    """A scalar (per row of a batch, if there is one) is configured as one element, which the reshape takes away."""
    dims = tensor.shape[1:] if is_batching else tensor.shape
    if dims:
        return dims, None
    return (1,), ModelTensorReshape() if is_batching else None


def _with_free_batch(config: ModelConfig, tensors: Sequence[TensorSignature]) -> Sequence[TensorSignature]:
    """A model that takes one number of rows only can batch where the shape rules fill batches up to that number."""
    rows = fixed_rows(config)
    if not rows:
        return tensors
    return [
        replace(tensor, shape=(-1, *tensor.shape[1:])) if tensor.shape[:1] == (rows,) else tensor for tensor in tensors
    ]


def _match(
    configured: Sequence[ModelInput | ModelOutput], signatures: Sequence[TensorSignature], which: str
) -> list[TensorSignature]:
    """The signature of each configured tensor, in their order."""
    by_name = {signature.name: signature for signature in signatures}
    for tensor in configured:
        if tensor.name not in by_name:
            allowed = ", ".join(sorted(by_name))
            raise InvalidArgument(f"unexpected inference {which} '{tensor.name}', allowed {which}s are: {allowed}")
    return [by_name[tensor.name] for tensor in configured]


def _check_control(config: ModelConfig, control: ModelInput, inputs: Sequence[TensorSignature]) -> None:
    signature = next((entry for entry in inputs if entry.name == control.name), None)
    if signature is None:
        raise Internal(
            f"configuration specified sequence control '{control.name}', but model does not provide that input"
        )
    start = 1 if config.is_batching else 0
    dims = signature.shape[start:]
    if dims not in (CONTROL_DIMS, (-1,)) or signature.shape[:start] not in ((), (-1,)):
        raise InvalidArgument(
            f"unable to load model '{config.name}', sequence control '{control.name}' in model has dims "
            f"{format_shape(dims)} but dims {format_shape(CONTROL_DIMS)} is expected"
        )
    if signature.data_type is not control.data_type:
        raise InvalidArgument(
            f"unable to load model '{config.name}', sequence control '{control.name}', the model expects data-type "
            f"{signature.data_type.value} but the model configuration specifies data-type {control.data_type.value}"
        )


def _check_optional(config: ModelConfig, model_input: ModelInput, signature: TensorSignature) -> None:
    if not model_input.optional:
        return
    if not signature.optional:
        raise InvalidArgument(
            f"'optional' is set to true for input '{model_input.name}' while the backend model doesn't support "
            "optional input"
        )
    if config.is_batching:
        raise InvalidArgument(
            f"unable to load model '{config.name}', optional input '{model_input.name}' is not supported for models "
            "that support batching"
        )


def _check_ragged(config: ModelConfig, model_input: ModelInput, signature: TensorSignature) -> None:
    place = f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] "
    if model_input.optional:
        raise InvalidArgument(
            f"{place} for ragged input '{model_input.name}', which is not supported for optional input"
        )
    if signature.shape != (-1,):
        raise InvalidArgument(
            f"{place} for ragged input '{model_input.name}', model provides {format_shape(signature.shape)}"
        )


def _check_generated(config: ModelConfig, name: str, data_type: DataType, inputs: Sequence[TensorSignature]) -> None:
    signature = next((entry for entry in inputs if entry.name == name), None)
    if signature is None:
        raise InvalidArgument(
            f"unable to load model '{config.name}', the server makes input '{name}' for each batch, but the model has "
            f"no such input"
        )
    if signature.data_type is not data_type:
        raise InvalidArgument(
            f"unable to load model '{config.name}', the server makes input '{name}' with datatype {data_type.value}, "
            f"model provides {signature.data_type.value}"
        )


def _check_data_type(
    config: ModelConfig, tensor: ModelInput | ModelOutput, signature: TensorSignature, which: str
) -> None:
    if tensor.data_type is not signature.data_type:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects datatype {tensor.data_type.value} for "
            f"{which} '{tensor.name}', model provides {signature.data_type.value}"
        )


def _check_shape(
    config: ModelConfig, tensor: ModelInput | ModelOutput, signature: TensorSignature, *, takes_any: bool = False
) -> None:
    expected = signature.shape
    if config.is_batching and not signature.can_batch:
        raise InvalidArgument(
            f"model '{config.name}', tensor '{tensor.name}': for the model to support batching the shape should have "
            "at least 1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{format_shape(expected)}"
        )
    if not expected:
        if any(dim != 1 for dim in tensor.dims):
            raise InvalidArgument(
                f"unable to load model '{config.name}', scalar tensor '{tensor.name}', should only provide 1 in the "
                "model configuration when the model doesn't support batching. Model configuration provided: "
                f"{format_shape(tensor.dims)}."
            )
        return
    configured = (-1, *tensor.backend_dims) if config.is_batching else tensor.backend_dims
    # An output's -1 must be configured as such.
    any_value = -1 if takes_any or isinstance(tensor, ModelInput) else None
    if len(configured) == len(expected) and all(
        model_dim in (dim, any_value) for model_dim, dim in zip(expected, configured, strict=True)
    ):
        return
    explanation = (
        "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
        f"complete shape {format_shape(configured)})"
        if config.is_batching
        else f"(shape {format_shape(configured)})"
    )
    raise InvalidArgument(
        f"model '{config.name}', tensor '{tensor.name}': the model expects {len(expected)} dimensions "
        f"(shape {format_shape(expected)}) but the model configuration specifies {len(configured)} dimensions "
        f"{explanation}"
    )


def format_shape(shape: Iterable[int]) -> str:
    """A shape as Triton prints it: `[-1,4]`."""
    return f"[{','.join(map(str, shape))}]"
