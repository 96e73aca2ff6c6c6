"""Request parameters: the request-level `parameters` member, those that the server interprets and custom ones.

Source: reference section "Infer request", Triton's parameters, sequence, schedule policy extensions.
"""

from __future__ import annotations

from typing import Any

from protocol.access.forwarding import RESERVED_PREFIX
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, ParameterValue


def set_parameters(request: InferenceRequest, parameters: dict[str, Any]) -> bool:
    """Put every parameter in its place in `request`; returns `binary_data_output`, which concerns only this edge.

    Raises:
        InvalidArgument: a parameter of the wrong type, or of a reserved name.
    """
    default_binary = False
    for key, value in parameters.items():
        match key:
            case "sequence_id":
                request.sequence_id = value if isinstance(value, str) else _unsigned(key, value)
            case "sequence_start":
                request.sequence_start = _boolean(key, value)
            case "sequence_end":
                request.sequence_end = _boolean(key, value)
            case "priority":
                request.priority = _unsigned(key, value)
            case "timeout":
                request.timeout_microseconds = _unsigned(key, value)
            case "binary_data_output":
                default_binary = _boolean(key, value)
            case _:
                request.parameters[key] = _unreserved(key, value)
    return default_binary


def _unsigned(key: str, value: object) -> int:
    if type(value) is int and 0 <= value < 2**64:
        return value
    raise InvalidArgument(
        f"Unable to parse '{key}': attempt to access JSON non-unsigned-integer as unsigned-integer, got {value!r:.40}"
    )


def _boolean(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidArgument(f"Unable to parse '{key}': attempt to access JSON non-boolean as boolean, got {value!r:.40}")


def _unreserved(key: str, value: object) -> ParameterValue:
    if key.startswith(RESERVED_PREFIX):
        raise InvalidArgument(
            f"parameter keys starting with '{RESERVED_PREFIX}' are reserved for Triton usage and should not be "
            f"specified. Got '{key}'"
        )
    return custom_parameter(key, value)


def custom_parameter(key: str, value: object) -> ParameterValue:
    """A parameter without a meaning to the server.

    Raises:
        InvalidArgument: neither a boolean, nor a number, nor a string.
    """
    if type(value) is int and not -(2**63) <= value < 2**63:
        try:
            return float(value)  # as Triton does past the range of a 64-bit integer
        except OverflowError:
            raise InvalidArgument(f"parameter '{key}' is out of range of a double") from None
    if isinstance(value, bool | int | float | str):
        return value
    raise InvalidArgument(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
