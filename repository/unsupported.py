"""Configuration fields that are not supported: refused at load, by an error that names the field.

`REFUSED` is the list of work to come: whoever builds a feature deletes its rows and adds its fields to `SUPPORTED`. A
test holds both against the schema, so no field is silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from protocol.errors import Unsupported
from repository.backend_fields import PYTHON_RUNTIME
from repository.model_config import Message, ModelConfig


def is_given(value: Any) -> bool:
    """Whether a field is set to anything but its default; a message counts as soon as it is there."""
    return isinstance(value, Message) or bool(value)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row: a field's path through the schema, and which of its values are refused.

    `detail` is shown after the path where only some values are refused.
    """

    path: str
    is_refused: Callable[[Any], bool] = is_given
    detail: str = ""


REFUSED = (
    Refusal("runtime", lambda value: value not in ("", PYTHON_RUNTIME), f" other than {PYTHON_RUNTIME}"),
    Refusal("input.is_non_linear_format_io"),
    Refusal("output.is_non_linear_format_io"),
    # Custom batching: the path of a library that decides what goes into a batch.
    Refusal(
        "parameters",
        lambda parameters: "TRITON_BATCH_STRATEGY_PATH" in parameters,
        "['TRITON_BATCH_STRATEGY_PATH']",
    ),
)

# Fields that have their effect, or are hints that a server may leave without one (marked so).
SUPPORTED = frozenset(
    {
        "name",
        "platform",
        "backend",
        "runtime",
        "version_policy.latest.num_versions",
        "version_policy.all",
        "version_policy.specific.versions",
        "max_batch_size",
        "input.name",
        "input.data_type",
        "input.format",
        "input.dims",
        "input.reshape.shape",
        "input.optional",
        "input.allow_ragged_batch",
        "input.is_shape_tensor",  # by tensorrt
        "output.name",
        "output.data_type",
        "output.dims",
        "output.label_filename",
        "output.reshape.shape",
        "output.is_shape_tensor",  # likewise
        "batch_input.kind",
        "batch_input.target_name",
        "batch_input.data_type",
        "batch_input.source_input",
        "batch_output.kind",
        "batch_output.target_name",
        "batch_output.source_input",
        "optimization.graph.level",
        "optimization.priority",  # hint
        "optimization.cuda.graphs",  # by tensorrt
        "optimization.cuda.busy_wait_events",  # hint
        "optimization.cuda.graph_spec.batch_size",  # by tensorrt
        "optimization.cuda.graph_spec.input.dim",  # likewise
        "optimization.cuda.graph_spec.graph_lower_bound.batch_size",  # likewise
        "optimization.cuda.graph_spec.graph_lower_bound.input.dim",  # likewise
        "optimization.cuda.output_copy_stream",  # hint
        "optimization.execution_accelerators.gpu_execution_accelerator.name",
        "optimization.execution_accelerators.gpu_execution_accelerator.parameters",
        "optimization.execution_accelerators.cpu_execution_accelerator.name",
        "optimization.execution_accelerators.cpu_execution_accelerator.parameters",
        "optimization.input_pinned_memory.enable",  # hint
        "optimization.output_pinned_memory.enable",  # hint
        "optimization.gather_kernel_buffer_threshold",  # hint
        "optimization.eager_batching",
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.preserve_ordering",
        "dynamic_batching.priority_levels",
        "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy.timeout_action",
        "dynamic_batching.default_queue_policy.default_timeout_microseconds",
        "dynamic_batching.default_queue_policy.allow_timeout_override",
        "dynamic_batching.default_queue_policy.max_queue_size",
        "dynamic_batching.priority_queue_policy.timeout_action",
        "dynamic_batching.priority_queue_policy.default_timeout_microseconds",
        "dynamic_batching.priority_queue_policy.allow_timeout_override",
        "dynamic_batching.priority_queue_policy.max_queue_size",
        "sequence_batching.max_sequence_idle_microseconds",
        "sequence_batching.control_input.name",
        "sequence_batching.control_input.control.kind",
        "sequence_batching.control_input.control.int32_false_true",
        "sequence_batching.control_input.control.fp32_false_true",
        "sequence_batching.control_input.control.bool_false_true",
        "sequence_batching.control_input.control.data_type",
        "sequence_batching.direct.max_queue_delay_microseconds",
        "sequence_batching.direct.minimum_slot_utilization",
        "sequence_batching.oldest.max_candidate_sequences",
        "sequence_batching.oldest.preferred_batch_size",
        "sequence_batching.oldest.max_queue_delay_microseconds",
        "sequence_batching.oldest.preserve_ordering",
        "sequence_batching.state.input_name",
        "sequence_batching.state.output_name",
        "sequence_batching.state.data_type",
        "sequence_batching.state.dims",
        "sequence_batching.state.initial_state.data_type",
        "sequence_batching.state.initial_state.dims",
        "sequence_batching.state.initial_state.zero_data",
        "sequence_batching.state.initial_state.data_file",
        "sequence_batching.state.initial_state.name",
        "sequence_batching.state.use_same_buffer_for_input_output",  # by backends that hold states
        "sequence_batching.state.use_growable_memory",  # likewise
        "sequence_batching.iterative_sequence",
        "ensemble_scheduling.step.model_name",
        "ensemble_scheduling.step.model_version",
        "ensemble_scheduling.step.model_namespace",
        "ensemble_scheduling.step.input_map",
        "ensemble_scheduling.step.output_map",
        "ensemble_scheduling.max_inflight_requests",
        "instance_group.name",
        "instance_group.kind",
        "instance_group.count",
        "instance_group.gpus",
        "instance_group.profile",  # by tensorrt
        "instance_group.secondary_devices.kind",  # likewise
        "instance_group.secondary_devices.device_id",  # likewise
        "instance_group.passive",
        "instance_group.host_policy",
        "instance_group.rate_limiter.resources.name",
        "instance_group.rate_limiter.resources.global",
        "instance_group.rate_limiter.resources.count",
        "instance_group.rate_limiter.priority",
        "default_model_filename",
        "cc_model_filenames",
        "metric_tags",
        "parameters",
        "parameters.string_value",
        "model_warmup.name",
        "model_warmup.batch_size",
        "model_warmup.inputs.data_type",
        "model_warmup.inputs.dims",
        "model_warmup.inputs.zero_data",
        "model_warmup.inputs.random_data",
        "model_warmup.inputs.input_data_file",
        "model_warmup.count",
        "model_operations.op_library_filename",
        "model_repository_agents.agents.name",
        "model_repository_agents.agents.parameters",
        "response_cache.enable",
        "model_metrics.metric_control.metric_identifier.family",
        "model_metrics.metric_control.histogram_options.buckets",
        "model_transaction_policy.decoupled",  # by those backends that can
    }
)


def refuse_unbuilt(config: ModelConfig) -> None:
    """Refuse a configuration that asks for what is not built.

    Raises:
        Unsupported: naming the model and every such field.
    """
    used = [
        f"'{refusal.path}{refusal.detail}'"
        for refusal in REFUSED
        if any(refusal.is_refused(value) for value in _values(config, refusal.path.split(".")))
    ]
    if used:
        raise Unsupported(
            f"the configuration of model '{config.name}' uses {', '.join(used)}, which this server does not support yet"
        )


def _values(message: Message, path: list[str]) -> Iterator[Any]:
    """The values at a path, one for each element of the repeated messages on the way to it."""
    name, *rest = path
    value = getattr(message, name)
    if not rest:
        yield value
        return
    for nested in value if isinstance(value, tuple) else (value,):
        if nested is not None:
            yield from _values(nested, rest)
