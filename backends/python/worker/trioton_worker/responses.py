"""`InferenceResponse`, and the parameters of requests and responses."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .arguments import to_sequence
from .connection import Frame, Head
from .errors import TritonError, TritonErrorCode, TritonModelException, crossing
from .packing import Packing, read_tensors
from .schemas import Schemas
from .tensors import Tensor

Parameters = Dict[str, Union[bool, int, float, str]]
# What a response is: its tensors, or the error in place of them, and its parameters.
ResponseParts = Tuple[List[Tensor], Optional[TritonError], Parameters]

_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


class InferenceResponse:
    """One answer: tensors, or an error in place of them."""

    __slots__ = ("_parts",)

    _parts: ResponseParts

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: error must be a TritonError, found type {type(error)}")
        if type(output_tensors) is list:
            tensors: list[Tensor] = output_tensors[:]
        else:
            tensors = list(to_sequence(output_tensors, "InferenceResponse: output_tensors", "Tensor"))
        for tensor in tensors:
            if type(tensor) is not Tensor:  # mostly it is
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                if not isinstance(tensor, Tensor):
                    raise TypeError(f"InferenceResponse: output_tensors must hold Tensor, found type {type(tensor)}")
        self._parts = tensors, error, {} if parameters is None else checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        return list(self._parts[0])

    def has_error(self) -> bool:
        return self._parts[1] is not None

    def error(self) -> TritonError | None:
        return self._parts[1]

    def parameters(self) -> str:
        """JSON text."""
        return json.dumps(self._parts[2])


def response_of(parts: ResponseParts) -> InferenceResponse:
    """The object that a model gets, of what the server has sent."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._parts = parts
    return response


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The response's output of that name; None where it has none, or an error."""
    if inference_response.has_error():
        return None
    for tensor in inference_response._parts[0]:
        if tensor._name == name:
            return tensor
    return None


def checked_parameters(parameters: Parameters) -> Parameters:
    if not isinstance(parameters, dict):
        parameters = dict(parameters)
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if not isinstance(value, str) and not _SMALLEST <= value <= _LARGEST:
            raise TritonModelException(f"parameter '{key}': {value} does not fit 64 bits")
    return dict(parameters)


def pack_response(response: InferenceResponse, names: Any, head: Head, known: Schemas) -> Packing | None:
    """Put one response into a frame of its own: into its head, and its tensors, but for outputs that are not in
    `names`; None where it has an error in place of them."""
    tensors, error, parameters = response._parts
    if parameters:
        head["parameters"] = parameters
    if error is not None:
        head["error"] = crossing(error)
        return None
    packing = Packing(known)
    packing.add(tensors, names)
    return packing


def unpack_response(frame: Frame, known: Schemas) -> InferenceResponse:
    """The response of a STREAM or RETURN frame."""
    head = frame.head
    error = head.get("error")
    found = read_tensors(frame, known, frame.body)
    return response_of(
        (
            found[0] if found else [],
            None if error is None else TritonError(error[1], TritonErrorCode(error[0])),
            head.get("parameters", {}),
        )
    )


def failed_response(message: str, code: TritonErrorCode = TritonError.INTERNAL) -> InferenceResponse:
    return InferenceResponse(error=TritonError(message, code))
