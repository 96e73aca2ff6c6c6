"""Request parameters: those with a meaning go to their fields, the others through to the model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protocol.errors import InvalidArgument
from protocol.http.codec.parameters import set_parameters
from protocol.messages import InferenceRequest


def apply(**parameters: Any) -> tuple[InferenceRequest, bool]:
    request = InferenceRequest("m", [])
    return request, set_parameters(request, parameters)


def test_parameters_with_a_meaning() -> None:
    request, binary = apply(
        sequence_id=42, sequence_start=True, sequence_end=False, priority=2, timeout=1500, binary_data_output=True
    )
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (42, True, False)
    assert (request.priority, request.timeout_microseconds, binary) == (2, 1500, True)
    assert request.parameters == {}


@pytest.mark.parametrize("value", ["abc", "", 0, 2**64 - 1])
def test_correlation_ids(value: int | str) -> None:
    assert apply(sequence_id=value)[0].sequence_id == value


@pytest.mark.parametrize("value", [True, 5, -(2**63), 2**63 - 1, 0.5, "x"])
def test_custom_parameters_pass(value: Any) -> None:
    """With their own JSON types."""
    found = apply(custom=value)[0].parameters["custom"]
    assert found == value
    assert type(found) is type(value)


def test_integers_past_64_bits_become_doubles() -> None:
    assert apply(custom=2**63)[0].parameters == {"custom": float(2**63)}
    assert math.isnan(float(apply(custom=math.nan)[0].parameters["custom"]))
    with pytest.raises(InvalidArgument, match="'custom' is out of range of a double"):
        apply(custom=10**400)


@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_custom_parameters_of_another_type(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^parameter 'custom' has invalid type"):
        apply(custom=value)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("sequence_id", -1, "non-unsigned-integer as unsigned-integer, got -1"),
        ("sequence_id", 2**64, "non-unsigned-integer as unsigned-integer, got 18446744073709551616"),
        ("sequence_id", True, "non-unsigned-integer as unsigned-integer, got True"),
        ("sequence_start", 1, "non-boolean as boolean, got 1"),
        ("sequence_end", "true", "non-boolean as boolean, got 'true'"),
        ("priority", "high", "non-unsigned-integer as unsigned-integer, got 'high'"),
        ("timeout", 1.5, "non-unsigned-integer as unsigned-integer, got 1.5"),
        ("binary_data_output", None, "non-boolean as boolean, got None"),
    ],
)
def test_parameters_of_the_wrong_type(key: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        apply(**{key: value})
    assert caught.value.message == f"Unable to parse '{key}': attempt to access JSON {text}"


def test_a_reserved_prefix() -> None:
    with pytest.raises(InvalidArgument, match=r"^parameter keys .* should not be specified\. Got 'triton_x'$"):
        apply(triton_x=1)
