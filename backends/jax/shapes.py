"""Input shapes to compile at load, deduced from the configuration.

A symbolic dimension of the function has the same size wherever it stands. Its sizes are known if it is the batch, which
is filled up to certain numbers of rows; or the configuration fixes it; or the shape rules pad it to buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from backends.jax.errors import Shapes
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, ModelInput
from repository.shape_rules import DimRule, read_shape_rules


def check_batch(config: ModelConfig, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Whether rows in are rows out; avals by the names of the configuration.

    Raises:
        InvalidArgument: the first dimension of an output is no batch dimension of an input, as 2*b is not b.
    """
    if not config.is_batching:
        return
    ragged = {entry.name for entry in config.input if entry.allow_ragged_batch}
    scattered = {target for entry in config.batch_output for target in entry.target_name}
    batches = {str(aval.shape[0]) for name, aval in inputs.items() if aval.shape and name not in ragged}
    compound = sorted(batch for batch in batches if not _is_variable(batch) and not batch.isdecimal())
    for name, aval in outputs.items():
        if name not in scattered and aval.shape and str(aval.shape[0]) not in batches:
            compound.append(str(aval.shape[0]))
    if compound:
        raise InvalidArgument(
            f"unable to load model '{config.name}', max_batch_size is {config.max_batch_size}, but among the first "
            f"dimensions of its tensors is {compound[0]}, which is no number of rows (those of its inputs are: "
            f"{', '.join(sorted(batches)) or 'none'})"
        )


def can_batch(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether all of a function's tensors have the same symbolic variable as first dimension."""
    batches = {str(aval.shape[0]) if aval.shape else "" for aval in (*inputs, *outputs)}
    return bool(inputs) and len(batches) == 1 and all(map(_is_variable, batches))


def known_shapes(
    config: ModelConfig, entries: Sequence[ModelInput], avals: Sequence[Any], batch: DimRule | None
) -> list[Shapes]:
    """All that can come; none where that is not known. `avals` are of the inputs `entries`, in this order.

    Without a `batch` rule, and so with any number of rows, those of one row.
    """
    rows = (1,) if batch is None else _sizes(batch, config.max_batch_size)
    rules = read_shape_rules(config)
    padded = {} if rules is None else rules.inputs
    sizes: dict[str, set[int] | None] = {}
    for entry, aval in zip(entries, avals, strict=True):
        rule = padded.get(entry.name)
        dim_rules = {} if rule is None or entry.reshape is not None else rule.dims
        is_ragged = isinstance(entry, ModelInput) and entry.allow_ragged_batch
        for place, dim in enumerate(aval.shape):
            if isinstance(dim, int):
                continue
            found = None if is_ragged else _sizes_of(place, entry, dim_rules, rows if config.is_batching else None)
            known = sizes.setdefault(str(dim), None)
            if found is not None:
                sizes[str(dim)] = set(found) if known is None else known & set(found)
    names = sorted(sizes)
    values = [sizes[name] for name in names]
    if not all(_is_variable(name) for name in names) or any(value is None for value in values):
        return []
    shapes: list[Shapes] = []
    for combination in product(*(sorted(value, reverse=True) for value in values if value is not None)):
        given = dict(zip(names, combination, strict=True))
        shapes.append(
            tuple(tuple(dim if isinstance(dim, int) else given[str(dim)] for dim in aval.shape) for aval in avals)
        )
    return shapes


def _sizes_of(
    place: int, entry: ModelInput, rules: Mapping[int, DimRule], rows: Sequence[int] | None
) -> Sequence[int] | None:
    """The sizes of one symbolic dimension, by one input; None where this input does not determine them."""
    if rows is not None:
        if place == 0:
            return rows
        place -= 1
    dims = entry.backend_dims
    if place < len(dims) and dims[place] != -1:
        return (dims[place],)
    rule = rules.get(place)
    return None if rule is None or not rule.buckets else rule.buckets


def _sizes(rule: DimRule, most: int) -> Sequence[int]:
    return rule.buckets or range(rule.multiple, most + 1, rule.multiple)


def _is_variable(dim: str) -> bool:
    """Whether it is a symbol by itself, no number and no expression of symbols."""
    return dim.isidentifier()
