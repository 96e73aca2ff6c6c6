"""Options of the jax backend, from the `parameters` of a configuration: compilation, and row counts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from backends.parameters import parse_bool, parse_int
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig
from repository.shape_rules import PARAMETER, DimRule, read_shape_rules

BATCH_PADDING = "BATCH_PADDING"
COMPILE_AT_LOAD = "COMPILE_AT_LOAD"
MAX_COMPILED_SHAPES = "MAX_COMPILED_SHAPES"
COMPILER_OPTIONS = "COMPILER_OPTIONS"
_PADDINGS = ("POWERS_OF_TWO", "PREFERRED", "MAX", "NONE")


@dataclass(frozen=True, slots=True)
class JaxOptions:
    """`compiler` are XLA's own, by its names."""

    compiles_at_load: bool = True
    shape_limit: int = 64
    compiler: dict[str, Any] = field(default_factory=dict)


def read_options(config: ModelConfig) -> JaxOptions:
    """Raises InvalidArgument for a value that does not parse or is not known."""
    at_load = config.parameter(COMPILE_AT_LOAD)
    limit = config.parameter(MAX_COMPILED_SHAPES)
    options = JaxOptions(
        compiles_at_load=not at_load or parse_bool(at_load, place=_place(config, COMPILE_AT_LOAD)),
        shape_limit=parse_int(limit, place=_place(config, MAX_COMPILED_SHAPES)) if limit else JaxOptions().shape_limit,
        compiler=_read_compiler(config),
    )
    if options.shape_limit < 1:
        raise InvalidArgument(f"{_place(config, MAX_COMPILED_SHAPES)}: expected a number from 1 on, got '{limit}'")
    return options


def read_batch_rule(config: ModelConfig) -> DimRule | None:
    """The numbers of rows that batches are filled up to, the last of them `max_batch_size`; None for any number.

    Raises:
        InvalidArgument: a value that is not known, or the shape rules say it, too.
    """
    text = config.parameter(BATCH_PADDING)
    padding = text.upper() or _PADDINGS[0]
    if padding not in _PADDINGS:
        raise InvalidArgument(f"{_place(config, BATCH_PADDING)}: expected one of {', '.join(_PADDINGS)}, got '{text}'")
    rules = read_shape_rules(config)
    if rules is not None and rules.batch is not None:
        if text:
            raise InvalidArgument(
                f"{_place(config, BATCH_PADDING)}: the parameter '{PARAMETER}' has a rule for the batch already; "
                f"keep one of the two"
            )
        return rules.batch
    is_ragged = bool(config.batch_input) or any(entry.allow_ragged_batch for entry in config.input)
    if not config.is_batching or is_ragged or padding == "NONE":
        return None
    most = config.max_batch_size
    sizes = {most}
    if padding == "PREFERRED":
        sizes.update(_preferred(config))
    elif padding == "POWERS_OF_TWO":
        sizes.update(1 << power for power in range(most.bit_length()) if 1 << power < most)
    return DimRule(buckets=tuple(sorted(sizes)))


def _preferred(config: ModelConfig) -> tuple[int, ...]:
    sequences = config.sequence_batching
    oldest = None if sequences is None else sequences.oldest
    for batching in (config.dynamic_batching, oldest):
        if batching is not None:
            return batching.preferred_batch_size
    return ()


def _read_compiler(config: ModelConfig) -> dict[str, Any]:
    text = config.parameter(COMPILER_OPTIONS)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(
            f"{_place(config, COMPILER_OPTIONS)}: expected a JSON object, got '{text}' ({error})"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(value, bool | int | float | str) for value in found.values()):
        raise InvalidArgument(
            f"{_place(config, COMPILER_OPTIONS)}: expected a JSON object of switches, numbers and strings, got '{text}'"
        )
    return found


def _place(config: ModelConfig, key: str) -> str:
    return f"model '{config.name}', parameter '{key}'"
