"""Parameters of infer requests and of their tensors: kinds, signs, reserved keys."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import InvalidArgument
from protocol.grpc.codec.parameters import class_count, decode_request_parameters, memory_reference
from protocol.messages import InferenceRequest
from protocol.proto import message_class
from protocol.shared_memory.placement import MemoryReference

Request: Any = message_class("inference.ModelInferRequest")

Parameters = dict[str, dict[str, Any]]


def parameters_of(holder: Any, parameters: Parameters) -> Any:
    for key, fields in parameters.items():
        parameter = holder.parameters[key]
        for field, value in fields.items():
            setattr(parameter, field, value)
    return holder.parameters


def decode(parameters: Parameters) -> InferenceRequest:
    request = InferenceRequest("m", [])
    decode_request_parameters(parameters_of(Request(), parameters), request)
    return request


KNOWN: list[tuple[str, dict[str, Any], str, Any]] = [
    ("sequence_id", {"int64_param": 42}, "sequence_id", 42),
    ("sequence_id", {"int64_param": -1}, "sequence_id", 2**64 - 1),
    ("sequence_id", {"string_param": "abc"}, "sequence_id", "abc"),
    ("sequence_start", {"bool_param": True}, "sequence_start", True),
    ("sequence_end", {"bool_param": True}, "sequence_end", True),
    ("priority", {"int64_param": 3}, "priority", 3),
    ("priority", {"uint64_param": 2**64 - 1}, "priority", 2**64 - 1),
    ("timeout", {"int64_param": 1000}, "timeout_microseconds", 1000),
]


@pytest.mark.parametrize(("key", "fields", "attribute", "value"), KNOWN)
def test_parameters_with_a_meaning_become_fields(key: str, fields: dict[str, Any], attribute: str, value: Any) -> None:
    request = decode({key: fields})
    assert getattr(request, attribute) == value
    assert request.parameters == {}


def test_other_parameters_are_the_models() -> None:
    request = decode(
        {
            "a": {"int64_param": -5},
            "b": {"bool_param": False},
            "c": {"string_param": ""},
            "d": {"double_param": 0.5},
            "triton_enable_empty_final_response": {"bool_param": True},
        }
    )
    assert request.parameters == {"a": -5, "b": False, "c": "", "d": 0.5}


EXPECTED_KINDS = "invalid value type for '{}' parameter, expected {}."
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("sequence_id", {"uint64_param": 1}, EXPECTED_KINDS.format("sequence_id", "int64_param or string_param")),
    ("sequence_id", {"bool_param": True}, EXPECTED_KINDS.format("sequence_id", "int64_param or string_param")),
    ("sequence_start", {"int64_param": 1}, EXPECTED_KINDS.format("sequence_start", "bool_param")),
    ("sequence_end", {}, EXPECTED_KINDS.format("sequence_end", "bool_param")),
    ("priority", {"string_param": "1"}, EXPECTED_KINDS.format("priority", "int64_param or uint64_param")),
    ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
    ("timeout", {"uint64_param": 1}, EXPECTED_KINDS.format("timeout", "int64_param")),
    ("timeout", {"int64_param": -1}, "invalid value for 'timeout', expected value >= 0."),
    (
        "triton_enable_empty_final_response",
        {"int64_param": 1},
        EXPECTED_KINDS.format("triton_enable_empty_final_response", "bool_param"),
    ),
    ("triton_x", {"int64_param": 1}, "parameter keys starting with 'triton_' are reserved for Triton usage."),
    ("mine", {"uint64_param": 1}, EXPECTED_KINDS.format("mine", "int64_param, bool_param, or string_param")),
    ("mine", {}, EXPECTED_KINDS.format("mine", "int64_param, bool_param, or string_param")),
]


@pytest.mark.parametrize(("key", "fields", "message"), WRONG)
def test_wrong_parameters_are_refused(key: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode({key: fields})
    assert caught.value.message.startswith(message)


def test_whether_a_client_wants_empty_final_responses() -> None:
    key = "triton_enable_empty_final_response"
    request = InferenceRequest("m", [])
    assert decode_request_parameters(parameters_of(Request(), {key: {"bool_param": True}}), request) is True
    assert decode_request_parameters(parameters_of(Request(), {key: {"bool_param": False}}), request) is False
    assert decode_request_parameters(parameters_of(Request(), {"a": {"bool_param": True}}), request) is False


REGION = {"string_param": "region"}
SIZE = {"int64_param": 64}
WRONG_OUTPUTS: list[tuple[Parameters, str]] = [
    (
        {"shared_memory_region": REGION},
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'y'",
    ),
    (
        {"shared_memory_region": SIZE},
        "invalid value type for 'shared_memory_region' parameter for tensor 'y', expected string_param.",
    ),
    (
        {"shared_memory_offset": REGION},
        "invalid value type for 'shared_memory_offset' parameter for tensor 'y', expected int64_param.",
    ),
    (
        {"shared_memory_region": REGION, "shared_memory_byte_size": {"uint64_param": 64}},
        "invalid value type for 'shared_memory_byte_size' parameter for tensor 'y', expected int64_param.",
    ),
    (
        {"shared_memory_offset": SIZE},
        "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'y'",
    ),
    (
        {"shared_memory_byte_size": SIZE},
        "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'y'",
    ),
    (
        {"classification": {"string_param": "3"}},
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    ({"classification": {"int64_param": 0}}, "invalid value for 'classification' parameter, expected >= 0"),
    (
        {"classification": SIZE, "shared_memory_region": REGION},
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
]


@pytest.mark.parametrize(("parameters", "message"), WRONG_OUTPUTS)
def test_tensor_parameters_that_are_refused(parameters: Parameters, message: str) -> None:
    output = Request().outputs.add(name="y")
    parameters_of(output, parameters)
    with pytest.raises(InvalidArgument) as caught:
        class_count(output) or memory_reference(output)
    assert message in str(caught.value)


GOOD_OUTPUTS: list[tuple[Parameters, int | None, MemoryReference | None]] = [
    ({"binary_data": {"bool_param": True}}, None, None),
    ({"classification": {"int64_param": 3}}, 3, None),
    ({"shared_memory_region": REGION, "shared_memory_byte_size": SIZE}, None, MemoryReference("region", 0, 64)),
    (
        {"shared_memory_region": REGION, "shared_memory_byte_size": SIZE, "shared_memory_offset": {"int64_param": -8}},
        None,
        MemoryReference("region", -8, 64),
    ),
]


@pytest.mark.parametrize(("parameters", "count", "reference"), GOOD_OUTPUTS)
def test_what_tensor_parameters_ask_for(
    parameters: Parameters, count: int | None, reference: MemoryReference | None
) -> None:
    """The numbers are not judged here: only the region knows."""
    output = Request().outputs.add(name="y")
    parameters_of(output, parameters)
    assert (class_count(output), memory_reference(output)) == (count, reference)
    assert len(output.parameters) == len(parameters)
