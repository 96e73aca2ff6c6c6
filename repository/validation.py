"""Validation of a configuration by itself, and the defaults that are filled in.

Flow: configuration as read -> `normalise` -> `validate(complete=False)` -> the backend's completion -> `normalise` ->
`validate`. The order of rules and their texts are Triton's. The rules for parts of a configuration are in
`validation_tensors`, `validation_scheduling`, `validation_ensemble`, `validation_paths` and `instance_groups`.
"""

from __future__ import annotations

import msgspec

from protocol.errors import InvalidArgument
from repository.backend_fields import MODEL_FORMS, is_known_pair
from repository.instance_groups import (
    InstancePlacement,
    UsableGpus,
    normalise_instance_groups,
    resolve_instances,
    validate_instance_groups,
)
from repository.layout import DEFAULT_VERSION_POLICY
from repository.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelOptimizationPolicy,
    ModelSequenceBatching,
    ModelVersionPolicy,
    PinnedMemoryBuffer,
)
from repository.shape_rules import read_shape_rules
from repository.validation_ensemble import validate_ensemble
from repository.validation_paths import validate_paths
from repository.validation_scheduling import validate_dynamic_batching, validate_sequence_batching
from repository.validation_tensors import validate_tensors

__all__ = ["InstancePlacement", "normalise", "resolve_instances", "validate", "validate_backend"]

_BACKENDS = frozenset(form.backend for form in MODEL_FORMS)


DEFAULT_MAX_SEQUENCE_IDLE_MICROSECONDS = 1_000_000


def validate(config: ModelConfig, *, complete: bool = True) -> None:
    """Judge a normalised configuration.

    Args:
        complete: False before the backend's completion, which may still add or mend inputs and outputs; their rules
            wait until then.

    Raises:
        InvalidArgument: the first rule that is broken, in Triton's order.
        Unsupported: a label file outside the model's directory.
    """
    name = config.name
    validate_backend(config)
    validate_paths(config)
    if config.max_batch_size < 0:
        raise InvalidArgument(f"'max_batch_size' must be non-negative value for {name}")
    if config.version_policy is None:
        raise InvalidArgument(f"must specify 'version policy' for {name}")
    validate_dynamic_batching(config)
    validate_sequence_batching(config)
    validate_ensemble(config)
    _validate_response_cache(config)
    _validate_model_metrics(config)
    if complete:
        validate_tensors(config)
        read_shape_rules(config)
    if not config.is_ensemble:
        validate_instance_groups(config)


def validate_backend(config: ModelConfig) -> None:
    """Judge what says who is to run the model: the first rules of `validate`, which need no backend.

    Raises:
        InvalidArgument: the first rule that is broken.
    """
    name = config.name
    if not name:
        raise InvalidArgument("model configuration must specify 'name'")
    if not config.backend and not config.is_ensemble:
        validate_ensemble(config)  # somebody may have forgotten its platform
        hint = f'; write backend: "{config.platform}"' if config.platform in _BACKENDS else ""
        raise InvalidArgument(f"unexpected platform type '{config.platform}' for {name}{hint}")
    if config.is_ensemble and config.backend:
        raise InvalidArgument(f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type")
    if not is_known_pair(config.platform, config.backend):
        raise InvalidArgument(f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}")


def normalise(
    config: ModelConfig, *, gpus: UsableGpus, backend_default_cpu_count: int, backend_prefers_gpu: bool
) -> ModelConfig:
    """Write the server's defaults into a configuration; what is given stays. Doing it twice changes nothing more.

    Args:
        gpus: those that may be used.
        backend_default_cpu_count: instances of a group of KIND_CPU that gives no count.
        backend_prefers_gpu: whether a group of KIND_AUTO goes to the GPUs where there are any.

    Raises:
        InvalidArgument: an instance group asks for a GPU that is not there.
    """
    config = msgspec.structs.replace(
        config,
        version_policy=_normal_version_policy(config.version_policy),
        dynamic_batching=_normal_dynamic_batching(config),
        sequence_batching=_normal_sequence_batching(config),
    )
    if config.is_ensemble:
        return config
    return msgspec.structs.replace(
        config,
        optimization=_normal_optimization(config.optimization),
        instance_group=normalise_instance_groups(
            config,
            gpus=gpus,
            backend_default_cpu_count=backend_default_cpu_count,
            backend_prefers_gpu=backend_prefers_gpu,
        ),
    )


def _validate_response_cache(config: ModelConfig) -> None:
    if config.response_cache is None or not config.response_cache.enable:
        return
    if config.sequence_batching is not None:
        obstacle = "sequence batching scheduler"
    elif config.is_decoupled:
        obstacle = "'decoupled' transaction policy"
    else:
        return
    raise InvalidArgument(
        f"Response Cache does not currently support model {config.name} with {obstacle}. Please disable the response "
        "cache."
    )


def _validate_model_metrics(config: ModelConfig) -> None:
    if config.model_metrics is None:
        return
    for control in config.model_metrics.metric_control:
        if control.metric_identifier is None:
            raise InvalidArgument("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise InvalidArgument("metric identifier must specify non-empty 'family'")
        if control.histogram_options is None:
            raise InvalidArgument("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise InvalidArgument("histogram options must specify non-empty 'buckets'")


def _normal_version_policy(policy: ModelVersionPolicy | None) -> ModelVersionPolicy:
    return DEFAULT_VERSION_POLICY if policy is None or policy == ModelVersionPolicy() else policy


def _normal_dynamic_batching(config: ModelConfig) -> ModelDynamicBatching | None:
    batching = config.dynamic_batching
    if batching is None or batching.preferred_batch_size or not config.is_batching:
        return batching
    return msgspec.structs.replace(batching, preferred_batch_size=(config.max_batch_size,))


def _normal_sequence_batching(config: ModelConfig) -> ModelSequenceBatching | None:
    batching = config.sequence_batching
    if batching is None:
        return None
    oldest = batching.oldest
    if oldest is not None and not oldest.preferred_batch_size and config.is_batching:
        oldest = msgspec.structs.replace(oldest, preferred_batch_size=(config.max_batch_size,))
    return msgspec.structs.replace(
        batching,
        max_sequence_idle_microseconds=(
            batching.max_sequence_idle_microseconds or DEFAULT_MAX_SEQUENCE_IDLE_MICROSECONDS
        ),
        oldest=oldest,
    )


def _normal_optimization(given: ModelOptimizationPolicy | None) -> ModelOptimizationPolicy:
    optimization = given or ModelOptimizationPolicy()
    return msgspec.structs.replace(
        optimization,
        input_pinned_memory=optimization.input_pinned_memory or PinnedMemoryBuffer(enable=True),
        output_pinned_memory=optimization.output_pinned_memory or PinnedMemoryBuffer(enable=True),
    )
