"""What the schema has and this server has not built yet: refused at load, by a sentence that names the field.

`REFUSED` is the list of work to come: whoever builds a feature deletes its rows and adds its fields to `SUPPORTED`. A
test holds both against the schema, so no field is silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from protocol.errors import Unsupported
from repository.model_config import ENSEMBLE_PLATFORM, Message, ModelConfig, TimeoutAction


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
    Refusal("platform", lambda platform: platform == ENSEMBLE_PLATFORM, f': "{ENSEMBLE_PLATFORM}"'),
    Refusal("runtime"),
    Refusal("input.is_shape_tensor"),
    Refusal("input.allow_ragged_batch"),
    Refusal("input.is_non_linear_format_io"),
    Refusal("output.is_shape_tensor"),
    Refusal("output.is_non_linear_format_io"),
    Refusal("batch_input"),
    Refusal("batch_output"),
    Refusal("optimization.cuda.graphs"),
    Refusal("optimization.cuda.busy_wait_events"),
    Refusal("optimization.cuda.graph_spec"),
    Refusal("optimization.cuda.output_copy_stream"),
    Refusal("optimization.eager_batching"),
    Refusal("dynamic_batching.priority_levels"),
    Refusal("dynamic_batching.default_priority_level"),
    Refusal("dynamic_batching.priority_queue_policy"),
    Refusal(
        "dynamic_batching.default_queue_policy.timeout_action",
        lambda action: action is not TimeoutAction.REJECT,
        ": DELAY",
    ),
    Refusal("dynamic_batching.default_queue_policy.default_timeout_microseconds"),
    Refusal("dynamic_batching.default_queue_policy.allow_timeout_override"),
    Refusal("sequence_batching"),
    Refusal("ensemble_scheduling"),
    Refusal("instance_group.rate_limiter"),
    Refusal("instance_group.secondary_devices"),
    Refusal("instance_group.profile"),
    Refusal("instance_group.passive"),
    Refusal("instance_group.host_policy"),
    Refusal("cc_model_filenames"),
    # Custom batching: the path of a library that decides what goes into a batch.
    Refusal(
        "parameters",
        lambda parameters: "TRITON_BATCH_STRATEGY_PATH" in parameters,
        "['TRITON_BATCH_STRATEGY_PATH']",
    ),
    Refusal("model_warmup"),
    Refusal("model_repository_agents.agents"),
    Refusal("response_cache.enable"),
)

# Fields that have their effect, or are hints that a server may leave without one (marked so).
SUPPORTED = frozenset(
    {
        "name",
        "platform",
        "backend",
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
        "output.name",
        "output.data_type",
        "output.dims",
        "output.label_filename",
        "output.reshape.shape",
        "optimization.graph.level",
        "optimization.priority",  # hint
        "optimization.execution_accelerators.gpu_execution_accelerator.name",
        "optimization.execution_accelerators.gpu_execution_accelerator.parameters",
        "optimization.execution_accelerators.cpu_execution_accelerator.name",
        "optimization.execution_accelerators.cpu_execution_accelerator.parameters",
        "optimization.input_pinned_memory.enable",  # hint
        "optimization.output_pinned_memory.enable",  # hint
        "optimization.gather_kernel_buffer_threshold",  # hint
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.preserve_ordering",
        "dynamic_batching.default_queue_policy.timeout_action",
        "dynamic_batching.default_queue_policy.max_queue_size",
        "instance_group.name",
        "instance_group.kind",
        "instance_group.count",
        "instance_group.gpus",
        "default_model_filename",
        "metric_tags",
        "parameters",
        "parameters.string_value",
        "model_operations.op_library_filename",
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
