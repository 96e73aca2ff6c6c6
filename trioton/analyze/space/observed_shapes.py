"""Shape rules from the shapes that were observed: sizes that vary are rounded up. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from repository.model_config import ModelConfig

Shape: TypeAlias = tuple[int, ...]
_PARTS = 4


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """Shapes of a request's inputs and of its outputs, without the batch."""

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]


def shape_rules_of(config: ModelConfig, observed: Sequence[ObservedRequest]) -> str:
    """Rules as JSON that let requests of different shapes share batches; empty where there is nothing to pad: shapes do
    not vary, inputs are ragged, or an output's size follows from no input's."""
    inputs: dict[str, Any] = {}
    varying: dict[tuple[str, int], list[int]] = {}
    for tensor in config.input:
        if tensor.allow_ragged_batch:
            return ""
        for axis, size in enumerate(tensor.dims):
            sizes = [each.inputs[tensor.name][axis] for each in observed if tensor.name in each.inputs]
            if size == -1 and len(set(sizes)) > 1:
                varying[tensor.name, axis] = sizes
                rule = inputs.setdefault(tensor.name, {"dims": {}})
                rule["dims"][str(axis)] = {"multiple": _multiple(sizes)}
    if not varying:
        return ""
    outputs: dict[str, Any] = {}
    for output in config.output:
        for axis, size in enumerate(output.dims):
            sizes = [each.outputs[output.name][axis] for each in observed if output.name in each.outputs]
            if size != -1 or len(set(sizes)) <= 1:
                continue
            source = next((place for place, seen in varying.items() if seen == sizes), None)
            if source is None:
                return ""
            outputs.setdefault(output.name, {"dims": {}})["dims"][str(axis)] = {"input": source[0], "dim": source[1]}
    return json.dumps({"inputs": inputs, **({"outputs": outputs} if outputs else {})})


def _multiple(sizes: Sequence[int]) -> int:
    """A power of two near a quarter of the largest. Sizes that were not seen are padded, too; buckets would have a
    last one, beyond which requests are refused."""
    return 1 << max(0, (max(sizes) // _PARTS).bit_length() - 1)
