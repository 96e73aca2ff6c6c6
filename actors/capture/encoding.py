"""Encodes captured calls: as JSON, whose `request` is one that the protocol takes again. Blocks; run in a thread."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from actors.capture.captured_call import CapturedCall, ElsewhereTensor
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import Buffer, InferenceResponse, ParameterValue, Tensor

# Elements of a tensor that is too large to be written whole.
HEAD_ELEMENTS = 16
# Of each of them, if it is a text.
HEAD_BYTES = 1024
# Of statistics, at once.
STATISTICS_ELEMENTS = 1 << 16
REDACTED = "[redacted]"


class CallEncoder:
    """`redacted` are names of tensors and parameters; of tensors of more than `max_tensor_bytes` only the first
    elements are written, and statistics."""

    def __init__(self, redacted: frozenset[str], max_tensor_bytes: int) -> None:
        self._redacted = redacted
        self._max_tensor_bytes = max_tensor_bytes

    def line(self, call: CapturedCall) -> bytes:
        """One JSON object and a newline."""
        found = self.described(call)
        for tensors, member in ((found["request"], "inputs"), *((each, "outputs") for each in found["responses"])):
            # One by one: the encoder lets no other thread run meanwhile.
            tensors[member] = [msgspec.Raw(msgspec.json.encode(tensor)) for tensor in tensors[member]]
        return msgspec.json.encode(found) + b"\n"

    def described(self, call: CapturedCall) -> dict[str, Any]:
        """The members of its JSON object."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(call.time_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "model": call.model,
            "version": str(call.version) if call.version > 0 else "",
            "request_id": call.tags.request_id,
            "trace_id": call.tags.trace_id,
            "key": call.tags.key,
            "duration_us": call.duration_ns // 1000,
            "outcome": call.outcome,
            "request": self._request(call),
            "responses": [self._response(response) for response in call.responses],
        }
        if call.error is not None:
            found["error"] = {"kind": call.error.kind, "message": _text(call.error.message)}
        if call.is_cut:
            found["is_cut"] = True
        return found

    def _request(self, call: CapturedCall) -> dict[str, Any]:
        found: dict[str, Any] = {"inputs": [self._tensor(tensor) for tensor in call.inputs]}
        if call.own_id:
            found["id"] = _text(call.own_id)
        if call.outputs:
            found["outputs"] = [{"name": _text(name)} for name in call.outputs]
        if call.parameters:
            found["parameters"] = self._parameters(call.parameters)
        return found

    def _response(self, response: InferenceResponse) -> dict[str, Any]:
        found: dict[str, Any] = {"outputs": [self._tensor(tensor) for tensor in response.outputs]}
        if response.parameters:
            found["parameters"] = self._parameters(response.parameters)
        return found

    def _parameters(self, parameters: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        return {
            _text(name): REDACTED if name in self._redacted else _text(value) if isinstance(value, str) else value
            for name, value in parameters.items()
        }

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": _text(tensor.name),
            "datatype": tensor.datatype.name,
            "shape": [*tensor.shape],
        }
        if tensor.name in self._redacted:
            return {**found, "is_redacted": True}
        if isinstance(tensor, ElsewhereTensor):
            return {**found, "is_elsewhere": True}
        is_cut = tensor.byte_size > self._max_tensor_bytes
        try:
            if is_cut and tensor.datatype is DataType.BYTES:  # to split all of it would take long
                array, statistics = np.array(_first_texts(tensor.data), np.object_), {}
            else:
                array = tensor.as_numpy().reshape(-1)
                statistics = _statistics(array) if is_cut else {}
        except (InvalidArgument, ValueError):  # it was refused, or a model has made it so
            return {**found, "is_invalid": True}
        if is_cut:
            found |= {"is_cut": True, "byte_size": tensor.byte_size, "statistics": statistics}
            array = array[:HEAD_ELEMENTS]
        return {**found, **_elements(array, tensor.datatype)}


def _first_texts(data: Buffer) -> list[bytes]:
    """The begins of the first elements of a BYTES tensor. Raises InvalidArgument: they are not whole."""
    view, position = memoryview(data), 0
    texts: list[bytes] = []
    while position < len(view) and len(texts) < HEAD_ELEMENTS:
        start = position + 4
        position = start + int.from_bytes(view[position:start], "little")
        if position > len(view):
            raise InvalidArgument("an element extends past the end of the data")
        texts.append(bytes(view[start : min(position, start + HEAD_BYTES)]))
    return texts


def _elements(array: NDArray[Any], datatype: DataType) -> dict[str, Any]:
    if datatype is not DataType.BYTES:
        return {"data": (array.astype(np.float32) if datatype is DataType.BF16 else array).tolist()}
    elements: Sequence[bytes] = array.tolist()
    try:
        return {"data": [element.decode() for element in elements]}
    except UnicodeDecodeError:
        return {"data_base64": [base64.b64encode(element).decode() for element in elements]}


def _statistics(array: NDArray[Any]) -> dict[str, float]:
    """Of numbers, those that are finite; none of texts. A part at a time: as float64 a tensor may be eight times as
    large, and requests are answered between two parts."""
    if array.dtype.kind not in "iufb" and array.dtype.itemsize != 2:
        return {}
    count, mean, squares = 0, 0.0, 0.0
    least, most = math.inf, -math.inf
    for begin in range(0, len(array), STATISTICS_ELEMENTS):
        numbers = array[begin : begin + STATISTICS_ELEMENTS].astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if not finite.size:
            continue
        least, most = min(least, float(finite.min())), max(most, float(finite.max()))
        with np.errstate(over="ignore", invalid="ignore"):
            own, distance = float(finite.mean()), float(finite.mean()) - mean
            before, count = count, count + finite.size
            # The sums of two parts, as Chan, Golub and LeVeque join them.
            squares += float(np.square(finite - own).sum()) + distance**2 * before * finite.size / count
            mean += distance * finite.size / count
    if not count:
        return {"finite": 0}
    return {"finite": count, "min": least, "max": most, "mean": mean, "std": math.sqrt(squares / count)}


def _text(text: str) -> str:
    """Without lone surrogates, which no file can have."""
    return text.encode("utf-8", "replace").decode()
