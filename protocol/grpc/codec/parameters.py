"""Request parameters of inference over gRPC: the value types that each key allows, and the field that it sets.

Source: Triton's parameter, sequence, schedule policy, classification and shared memory extensions; the texts are
Triton's.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest
from protocol.shared_memory.placement import MemoryReference

_UINT64 = 2**64

# How each kind of InferParameter is called in errors.
_BOOL, _INT64, _STRING, _DOUBLE, _UINT = (
    "bool_param",
    "int64_param",
    "string_param",
    "double_param",
    "uint64_param",
)

_SHARED_MEMORY_KINDS = {
    "shared_memory_region": _STRING,
    "shared_memory_offset": _INT64,
    "shared_memory_byte_size": _INT64,
}


def decode_request_parameters(parameters: Any, request: InferenceRequest) -> bool:
    """Put a request's parameters where they belong: those with a meaning into fields, the others into its dict.

    Returns whether a stream's client wants to be told of a final flag that comes without a response.

    Raises:
        InvalidArgument: a value of the wrong kind or sign, or a reserved key.
    """
    wants_empty_final = False
    for key, parameter in parameters.items():
        match key:
            case "sequence_id":
                value = _value(key, parameter, _INT64, _STRING)
                # Correlation ids are unsigned; gRPC clients have only a signed field for them.
                request.sequence_id = value % _UINT64 if isinstance(value, int) else value
            case "sequence_start":
                request.sequence_start = _value(key, parameter, _BOOL)
            case "sequence_end":
                request.sequence_end = _value(key, parameter, _BOOL)
            case "priority":
                request.priority = _not_negative(key, _value(key, parameter, _INT64, _UINT))
            case "timeout":
                request.timeout_microseconds = _not_negative(key, _value(key, parameter, _INT64))
            case "triton_enable_empty_final_response":
                wants_empty_final = _value(key, parameter, _BOOL)
            case _ if key.startswith("triton_"):
                raise InvalidArgument(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                    "starting with 'triton_' are allowed: triton_enable_empty_final_response"
                )
            case _:
                kind = parameter.WhichOneof("parameter_choice")
                if kind not in (_INT64, _BOOL, _STRING, _DOUBLE):
                    raise InvalidArgument(
                        f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
                    )
                request.parameters[key] = getattr(parameter, kind)
    return wants_empty_final


def _value(key: str, parameter: Any, *kinds: str) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in kinds:
        raise InvalidArgument(f"invalid value type for '{key}' parameter, expected {' or '.join(kinds)}.")
    return getattr(parameter, kind)


def _not_negative(key: str, value: int) -> int:
    if value < 0:
        raise InvalidArgument(f"invalid value for '{key}', expected value >= 0.")
    return value


def memory_reference(tensor: Any) -> MemoryReference | None:
    """Where in shared memory an input, or a requested output, is; None where its parameters name no region.

    Raises:
        InvalidArgument: the parameters are no valid reference to shared memory.
    """
    parameters = tensor.parameters
    for key, expected in _SHARED_MEMORY_KINDS.items():
        if key in parameters and parameters[key].WhichOneof("parameter_choice") != expected:
            raise InvalidArgument(
                f"invalid value type for '{key}' parameter for tensor '{tensor.name}', expected {expected}."
            )
    if "shared_memory_region" not in parameters:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in parameters:
                raise InvalidArgument(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
                )
        return None
    if "shared_memory_byte_size" not in parameters:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
            f"for tensor '{tensor.name}'"
        )
    offset = parameters["shared_memory_offset"].int64_param if "shared_memory_offset" in parameters else 0
    return MemoryReference(
        parameters["shared_memory_region"].string_param, offset, parameters["shared_memory_byte_size"].int64_param
    )


def class_count(output: Any) -> int | None:
    """How many classes a requested output is wanted as; None where its values are wanted.

    Raises:
        InvalidArgument: no positive number, or shared memory is asked for as well.
    """
    parameters = output.parameters
    if "classification" not in parameters:  # a look-up that is not there would put an empty one in its place
        return None
    parameter = parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != _INT64:
        raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
    count: int = parameter.int64_param
    if count <= 0:
        raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
    if "shared_memory_region" in parameters:
        raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
    return count
