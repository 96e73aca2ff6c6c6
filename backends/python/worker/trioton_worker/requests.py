"""`InferenceRequest` and `InferenceResponse`, as a model meets them."""

from __future__ import annotations

import json
from typing import Any, Dict, Sequence, Union

from .errors import NotBuilt, TritonError, TritonModelException
from .tensors import Tensor

Parameters = Dict[str, Union[bool, int, float, str]]

_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


class PreferredMemory:
    """Where a called model's outputs should be; there is nothing but the CPU yet."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceRequest:
    """One request. Models can make their own, but not run them yet."""

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_parameters",
        "_request_id",
        "_requested_output_names",
        "_timeout",
    )

    _requested_output_names: set[str] | frozenset[str]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: Any = None,
        parameters: Parameters | None = None,
    ) -> None:
        if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
            raise TypeError("Correlation ID must be integer or string")
        who = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        if any(tensor is None for tensor in inputs):
            raise TritonModelException(f"Input tensor {who}")
        if not all(requested_output_names):
            raise TritonModelException(f"Requested output name {who}")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._requested_output_names = set(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._parameters = checked_parameters(parameters)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        """The sequence flags, or-ed."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """In microseconds; 0 means none."""
        return self._timeout

    def parameters(self) -> str:
        """JSON text."""
        return json.dumps(self._parameters)

    def requested_output_names(self) -> set[str]:
        """All outputs where the client listed none."""
        return set(self._requested_output_names)

    def is_cancelled(self) -> bool:
        """Always False: cancellation does not reach the worker yet."""
        return False

    def get_response_sender(self) -> Any:
        raise NotBuilt("InferenceRequest.get_response_sender")

    def set_release_flags(self, flags: int) -> None:
        raise NotBuilt("InferenceRequest.set_release_flags")

    def trace(self) -> Any:
        raise NotBuilt("InferenceRequest.trace")

    def exec(self, decoupled: bool = False) -> Any:
        raise NotBuilt("InferenceRequest.exec")

    def async_exec(self, decoupled: bool = False) -> Any:
        raise NotBuilt("InferenceRequest.async_exec")


class InferenceResponse:
    """One answer: tensors, or an error in place of them."""

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: error must be a TritonError, found type {type(error)}")
        for tensor in output_tensors:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceResponse: output_tensors must hold Tensor, found type {type(tensor)}")
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters = checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._output_tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """JSON text."""
        return json.dumps(self._parameters)


def checked_parameters(parameters: Parameters | None) -> Parameters:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TypeError(f"parameters must be a dict, found type {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if not isinstance(value, str) and not _SMALLEST <= value <= _LARGEST:
            raise TritonModelException(f"parameter '{key}': {value} does not fit 64 bits")
    return dict(parameters)
