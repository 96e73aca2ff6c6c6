"""Finds all faults of a configuration, where `repository.validation` stops at the first.

Each part is judged alone, in a configuration that has no other parts, and then the whole. So a fault is told once, and
hides no other but those of the same part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from protocol.datatypes import DataType
from protocol.errors import ServerError
from repository.layout import DEFAULT_VERSION_POLICY
from repository.model_config import (
    InstanceKind,
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelSequenceBatching,
)
from repository.validation import validate

_replace = msgspec.structs.replace
# The parts, besides those of an ensemble, which belong together.
_REPEATED = ("input", "output", "batch_input", "batch_output", "instance_group")
_SINGLE = ("dynamic_batching", "response_cache", "model_metrics")
_GROUP = ModelInstanceGroup(name="g", kind=InstanceKind.CPU, count=1)


def all_faults(config: ModelConfig) -> list[ServerError]:
    """What `validate` would raise for a normalised configuration, once all that is before it is mended; none for one
    that passes."""
    found: dict[str, ServerError] = {}
    for part in _parts(config):
        try:
            validate(part)
        except ServerError as error:
            found.setdefault(error.message, error)
    return list(found.values())


def _parts(config: ModelConfig) -> Iterator[ModelConfig]:
    if config.is_ensemble:
        yield config
        return
    empty: dict[str, Any] = {
        **dict.fromkeys(_REPEATED, ()),
        **dict.fromkeys(_SINGLE),
        "sequence_batching": None,
        "parameters": {},
        "version_policy": config.version_policy or DEFAULT_VERSION_POLICY,
        "instance_group": (_GROUP,),
    }
    bare = _replace(config, **empty)
    yield bare
    # The parts shall be judged also where the whole has a fault.
    bare = _replace(bare, platform="", backend=config.backend or "any", max_batch_size=max(0, config.max_batch_size))
    bare = _replace(bare, ensemble_scheduling=None)
    tensors: dict[str, Any] = {
        "input": tuple(ModelInput(entry.name or "_", DataType.FP32, dims=(1,)) for entry in config.input),
        "output": tuple(ModelOutput(entry.name or "_", DataType.FP32, dims=(1,)) for entry in config.output),
    }
    for name in _REPEATED:
        needed = tensors if name.startswith("batch_") else {}
        for item in getattr(config, name):
            yield _replace(bare, **{**needed, "platform": config.platform, name: (item,)})
    sequences = config.sequence_batching
    if config.dynamic_batching is not None:
        yield _replace(bare, dynamic_batching=config.dynamic_batching)
    if sequences is not None:
        yield _replace(bare, sequence_batching=_replace(sequences, control_input=(), state=()))
        sequences = _replace(sequences, direct=None, oldest=None)
        for control in sequences.control_input:
            yield _replace(bare, sequence_batching=_replace(sequences, control_input=(control,), state=()))
        for state in sequences.state:
            part = _replace(sequences, control_input=(), state=(state,))
            yield _replace(bare, sequence_batching=part, instance_group=config.instance_group or (_GROUP,))
    scheduler = None if sequences is None else ModelSequenceBatching()
    yield _replace(bare, response_cache=config.response_cache, sequence_batching=scheduler)
    yield _replace(bare, model_metrics=config.model_metrics)
    yield config
