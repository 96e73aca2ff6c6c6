"""Values of a request's tensors, as plain lists, and what becomes of those that are not served. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import Tensor, decode_bytes_elements

# Of one tensor: what becomes a list holds the loop.
MOST_ELEMENTS = 1 << 14


def values_of(tensor: Tensor, where: str) -> list[Any]:
    """The elements in a row. Raises InvalidArgument: also where there are more than anybody needs."""
    if (count := math.prod(tensor.shape)) > MOST_ELEMENTS:
        raise InvalidArgument(f"{where}: '{tensor.name}' may have {MOST_ELEMENTS} elements, got {count}")
    if tensor.datatype is not DataType.BYTES:
        found: list[Any] = tensor.as_numpy().reshape(-1).tolist()
        return found
    try:
        return [each.decode() for each in decode_bytes_elements(tensor.data)]
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{where}: '{tensor.name}' is not UTF-8: {error}") from None


def refuse_others(given: Mapping[str, list[Any]], only: Mapping[str, Collection[Any]], where: str) -> None:
    """Refuse by its name what has another value than those in `only`; one without any is refused whatever it has.

    Raises:
        InvalidArgument: there is one.
    """
    for name, values in given.items():
        served = only.get(name)
        if served is not None and (not served or any(value not in served for value in values)):
            shown = f" {values[0]!r:.40}" if served else ""
            raise InvalidArgument(f"{where}: '{name}'{shown} is not supported")


def single(given: Mapping[str, list[Any]], many: Collection[str], where: str) -> dict[str, Any]:
    """The only element of each but those that may have many. Raises InvalidArgument."""
    for name, values in given.items():
        if name not in many and len(values) != 1:
            raise InvalidArgument(f"{where}: '{name}' must have one element, got {len(values)}")
    return {name: values[0] for name, values in given.items() if name not in many}


def greedy_unless_asked(values: Mapping[str, Any]) -> dict[str, Any]:
    """As TensorRT-LLM samples: a field of 0 is none, and without any of them it takes the likeliest token."""
    asked = {name: value for name, value in values.items() if name != "top_p" or value != 0}
    return asked if {"temperature", "top_k", "top_p"} & asked.keys() else {**asked, "temperature": 0.0}
