"""Padding: pads requests by shape rules so that they share a batch, and trims the responses.

Flow: backend's `execute` → [pad] → model → [trim] → responses. Pure; called where a batch is gathered and scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelConfig
from repository.shape_rules import GeneratedInput, InputRule, OutputRule, Shape, ShapeRules


class Padding:
    """The rules of one model, applied to requests that were checked against them."""

    def __init__(self, rules: ShapeRules, config: ModelConfig) -> None:
        self._rules = rules
        self._model = config.name
        self._leading = 1 if config.is_batching else 0

    def pad(self, request: InferenceRequest) -> InferenceRequest:
        """The request as the model gets it: inputs padded, masks and lengths added. The one given stays as it is."""
        inputs: list[Tensor] = []
        for tensor in request.inputs:
            rule = self._rules.inputs.get(tensor.name)
            if rule is None:
                inputs.append(tensor)
            else:
                inputs += self._padded(tensor, rule)
        return replace(request, inputs=inputs)

    def trim(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """The response to a request, as it was before it was padded, without what the padding has added.

        Raises:
            Internal: an output is smaller than what it is to be trimmed to.
        """
        if not self._rules.outputs:
            return response
        shapes = {tensor.name: tensor.shape[self._leading :] for tensor in request.inputs}
        outputs = [self._trimmed(tensor, shapes) for tensor in response.outputs]
        return replace(response, outputs=outputs)

    def _padded(self, tensor: Tensor, rule: InputRule) -> list[Tensor]:
        rows, shape = tensor.shape[: self._leading], tensor.shape[self._leading :]
        target = self._rules.padded_shape(tensor.name, shape)
        made: list[Tensor] = []
        if target == shape:
            made.append(tensor)
        else:
            array = np.full((*rows, *target), _pad_value(tensor, rule), dtype=tensor.datatype.dtype)
            array[_corner(self._leading, shape)] = tensor.as_numpy()
            made.append(Tensor.from_numpy(tensor.name, array))
        dims = sorted(rule.dims)
        if rule.mask is not None:
            mask = np.zeros((*rows, *(target[dim] for dim in dims)), dtype=rule.mask.datatype.dtype)
            mask[_corner(self._leading, [shape[dim] for dim in dims])] = 1
            made.append(_generated(rule.mask, mask))
        if rule.length is not None:
            lengths = np.array([shape[dim] for dim in dims])
            made.append(_generated(rule.length, np.broadcast_to(lengths, (*rows, len(dims)))))
        return made

    def _trimmed(self, tensor: Tensor, shapes: dict[str, Shape]) -> Tensor:
        rule = self._rules.outputs.get(tensor.name)
        if rule is None:
            return tensor
        target = self._target(tensor, rule, shapes)
        if target == tensor.shape:
            return tensor
        array = tensor.as_numpy()[tuple(slice(size) for size in target)]
        return Tensor.from_numpy(tensor.name, array)

    def _target(self, tensor: Tensor, rule: OutputRule, shapes: dict[str, Shape]) -> Shape:
        target = list(tensor.shape)
        for dim, source in rule.dims.items():
            if source.input not in shapes:  # an optional input that the request leaves out
                continue
            size, place = shapes[source.input][source.dim], dim + self._leading
            if place >= len(target) or target[place] < size:
                raise Internal(
                    f"model '{self._model}', output '{tensor.name}': the shape rules trim dimension {dim} to the "
                    f"{size} of input '{source.input}', but the model gave shape {list(tensor.shape)}"
                )
            target[place] = size
        return tuple(target)


def _corner(leading: int, shape: Sequence[int]) -> tuple[slice, ...]:
    return (slice(None),) * leading + tuple(slice(size) for size in shape)


def _pad_value(tensor: Tensor, rule: InputRule) -> bool | int | float | bytes:
    if tensor.datatype is not DataType.BYTES:
        assert not isinstance(rule.pad_value, str)  # refused at load
        return rule.pad_value
    return rule.pad_value.encode() if isinstance(rule.pad_value, str) else b""


def _generated(made: GeneratedInput, array: NDArray[Any]) -> Tensor:
    return Tensor.from_numpy(made.input, array.astype(made.datatype.dtype))
