"""Options of the fil backend, from the `parameters` of a configuration.

The keys and defaults are those of Triton's fil backend; what differs is said where it does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from backends.parameters import parse_bool, parse_int
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig

logger = logging.getLogger(__name__)

DEFAULT_THRESHOLD = 0.5
_LAYOUTS = ("depth_first", "breadth_first", "layered", "layered_children_together")
_CHUNK_SIZES = (1, 2, 4, 8, 16, 32)
# Hints for code that this backend does not have: for a GPU, or gone from Triton too (the last five).
HINTS = (
    "transfer_threshold",
    "layout",
    "chunk_size",
    "use_experimental_optimizations",
    "algo",
    "storage_type",
    "blocks_per_sm",
    "threads_per_tree",
)


@dataclass(frozen=True, slots=True)
class ForestOptions:
    """`model_type` is empty, and `is_classifier` None, where the configuration leaves them to the file; `thread_count`
    is None for all cores."""

    model_type: str = ""
    is_classifier: bool | None = None
    predict_proba: bool = False
    threshold: float = DEFAULT_THRESHOLD
    allows_unknown_fields: bool = False
    thread_count: int | None = None


def read_options(config: ModelConfig) -> ForestOptions:
    """Raises InvalidArgument for a value that does not parse or is not known."""

    def boolean(key: str) -> bool | None:
        text = config.parameter(key)
        return parse_bool(text, place=_place(config, key)) if text else None

    is_classifier = boolean("is_classifier")
    old = boolean("output_class")  # its name in older releases
    return ForestOptions(
        model_type=config.parameter("model_type"),
        is_classifier=old if is_classifier is None else is_classifier,
        predict_proba=bool(boolean("predict_proba")),
        threshold=_read_threshold(config),
        allows_unknown_fields=bool(boolean("xgboost_allow_unknown_field")),
        thread_count=_read_thread_count(config),
    )


def check_hints(config: ModelConfig) -> None:
    """Log which parameters have no effect here. Raises InvalidArgument for a value that Triton would refuse."""
    place = {key: _place(config, key) for key in HINTS}
    given = {key: config.parameter(key) for key in HINTS if config.parameter(key)}
    if "transfer_threshold" in given:
        parse_int(given["transfer_threshold"], place=place["transfer_threshold"])
    if "use_experimental_optimizations" in given:
        parse_bool(given["use_experimental_optimizations"], place=place["use_experimental_optimizations"])
    if "layout" in given and given["layout"] not in _LAYOUTS:
        raise InvalidArgument(f"{place['layout']}: expected one of {', '.join(_LAYOUTS)}, got '{given['layout']}'")
    if "chunk_size" in given and parse_int(given["chunk_size"], place=place["chunk_size"]) not in _CHUNK_SIZES:
        raise InvalidArgument(f"{place['chunk_size']}: expected a power of 2 from 1 to 32, got '{given['chunk_size']}'")
    for key in given:
        logger.info("%s: a hint that has no effect here", place[key])


def _read_threshold(config: ModelConfig) -> float:
    text = config.parameter("threshold")
    if not text:
        return DEFAULT_THRESHOLD
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(
            f"{_place(config, 'threshold')}: Bad input for parameter threshold; expected a number, got '{text}'"
        ) from None


def _read_thread_count(config: ModelConfig) -> int | None:
    text = config.parameter("cpu_nthread")
    if not text:
        return None
    count = parse_int(text, place=_place(config, "cpu_nthread"))
    return count if count > 0 else None


def _place(config: ModelConfig, key: str) -> str:
    return f"model '{config.name}', parameter '{key}'"
