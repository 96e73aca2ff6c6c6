"""Tensors of text models: prompts and sampling parameters to `InferenceRequest`, responses to pieces of text. Pure.

The tensors are those of Triton's vLLM backend, and only such are sent as the model has. A model without an input for
sampling parameters gets each field that it has an input for as that tensor (so TensorRT-LLM's ensembles), and all plain
ones as parameters of the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Internal, shown_value
from protocol.http.openai.errors import FieldError
from protocol.messages import (
    InferenceRequest,
    InferenceResponse,
    ParameterValue,
    Tensor,
    decode_bytes_elements,
    encode_bytes_elements,
)
from protocol.text.model import TensorNames, TextModel

# Inputs by which models in the manner of TensorRT-LLM take what is called otherwise here.
_OTHER_NAMES = {"stop": "stop_words"}
_LLM_API_PREFIX = "sampling_param_"
_GUIDE_TYPE, _GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"
# Their words for the members of `structured_outputs`.
_GUIDES = {
    "json": "json_schema",
    "json_object": "json",
    "regex": "regex",
    "grammar": "ebnf_grammar",
    "structural_tag": "structural_tag",
}


class TextPart(msgspec.Struct):
    """What one response has of a text. `finish_reason` is empty while there is more to come, `output_tokens` counts
    those that are new, and `logprobs` has one entry for each of them, the token that was taken first. Of the
    prompt, `cached_tokens` were in the model's cache, if it says so."""

    text: str = ""
    finish_reason: str = ""
    logprobs: list[dict[str, dict[str, Any]]] | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class PromptEncoder:
    """Makes the requests of one call; `sampling` holds sampling parameters by vLLM's names.

    Raises:
        FieldError: the model has no input for what a field needs.
    """

    def __init__(
        self,
        text: TextModel,
        metadata: ModelMetadata,
        sampling: Mapping[str, Any],
        *,
        stream: bool,
        return_logprobs: bool = False,
        parameters: Mapping[str, ParameterValue] | None = None,
        request_id: str = "",
        images: Tensor | None = None,
    ) -> None:
        self._text = text
        self._name = metadata.name
        self._inputs = {each.name: each for each in metadata.inputs}
        self._sampling = sampling
        self._request_id = request_id
        self._parameters = dict(parameters or {})
        names = text.names
        self._has_sampling = names.sampling_parameters in self._inputs
        self._fixed: list[Tensor] = [] if images is None else [images]
        for name, value in (
            (names.stream, stream),
            (names.exclude_input_in_output, True),
            (names.return_finish_reason, True),
            (names.return_num_input_tokens, True),
            (names.return_num_output_tokens, True),
        ):
            if (there := self._inputs.get(name)) is not None:
                self._fixed.append(_boolean(there, value))
        if return_logprobs:
            self._want_logprobs(names)
        if not self._has_sampling:
            self._spread(sampling)

    def request(self, prompt: str, seed: int | None = None, token_ids: Sequence[int] | None = None) -> InferenceRequest:
        """One for a prompt; `seed` takes the place of that in the sampling parameters. `token_ids` are told where they
        are known, if the model takes them."""
        names = self._text.names
        inputs = [_strings(self._inputs[names.text_input], [prompt]), *self._fixed]
        if token_ids and (there := self._inputs.get(names.prompt_token_ids)) is not None:
            inputs.append(_numbers(there, token_ids))
        if self._has_sampling:
            sampling = self._sampling if seed is None else {**self._sampling, "seed": seed}
            inputs.append(_strings(self._inputs[names.sampling_parameters], [msgspec.json.encode(sampling)]))
        elif seed is not None:
            inputs = [each for each in inputs if each.name != "seed"]
            inputs += self._own_tensor("seed", seed)
        parameters = dict(self._parameters)
        if seed is not None and not self._has_sampling:
            parameters["seed"] = seed
        return InferenceRequest(self._name, inputs, id=self._request_id, parameters=parameters)

    def _want_logprobs(self, names: TensorNames) -> None:
        there = self._inputs.get(names.return_logprobs)
        if there is None:
            raise FieldError(f"model '{self._name}' gives no logprobs", "logprobs", "unsupported_parameter")
        self._fixed.append(_boolean(there, True))

    def _spread(self, sampling: Mapping[str, Any]) -> None:
        for key, value in sampling.items():
            made = self._guide(value) if key == "structured_outputs" else self._own_tensor(key, value)
            self._fixed += made
            if isinstance(value, bool | int | float | str):
                self._parameters[key] = value
            elif not made and value and key != "stop":  # which is looked for here
                raise FieldError(
                    f"model '{self._name}' takes no '{self._text.names.sampling_parameters}', which '{key}' needs",
                    key,
                    "unsupported_parameter",
                )

    def _guide(self, structure: Mapping[str, Any]) -> list[Tensor]:
        """The two inputs that TensorRT-LLM's ensembles have for the form of the output, if the model has them."""
        kind, guide = self._inputs.get(_GUIDE_TYPE), self._inputs.get(_GUIDE)
        ((key, value),) = structure.items() if len(structure) == 1 else (("", None),)
        if kind is None or guide is None or key not in _GUIDES:
            return []
        text = "" if key == "json_object" else value if isinstance(value, str) else msgspec.json.encode(value)
        return [_strings(kind, [_GUIDES[key]]), _strings(guide, [text])]

    def _own_tensor(self, key: str, value: Any) -> list[Tensor]:
        """The input that a model has for this field alone, if it has one.

        Raises:
            FieldError: it cannot hold the value.
        """
        there = input_of(self._inputs, key)
        if there is None or there.name == self._text.names.text_input:
            return []
        values = value if isinstance(value, list) else [value]
        if not values:
            return []
        datatype = BY_PROTOCOL_NAME[there.datatype]
        if datatype is DataType.BYTES:
            return [_strings(there, [str(each) for each in values])]
        if key == "seed" and datatype is DataType.UINT64:
            values = [each + (1 << 64) if -(1 << 63) <= each < 0 else each for each in values]
        try:
            return [_numbers(there, values)]
        except (OverflowError, TypeError, ValueError):
            raise FieldError(
                f"'{key}': input '{there.name}' of model '{self._name}' takes {there.datatype}, got "
                f"{shown_value(value)}",
                key,
            ) from None


def input_of(inputs: Mapping[str, TensorMetadata], key: str) -> TensorMetadata | None:
    """The input that a model has for one sampling field alone, if it has one."""
    for name in (f"{_LLM_API_PREFIX}{key}", _OTHER_NAMES.get(key, ""), key):
        there = inputs.get(name)
        # An LLM-API model's own `stop` is a BOOL that ends other requests.
        if there is not None and (key != "stop" or there.datatype == "BYTES"):
            return there
    return None


def _shape(tensor: TensorMetadata, count: int = 1) -> tuple[int, ...]:
    return (*(1,) * (len(tensor.shape) - 1), count)


def _boolean(tensor: TensorMetadata, value: bool) -> Tensor:
    return Tensor(tensor.name, DataType.BOOL, _shape(tensor), b"\1" if value else b"\0")


def _numbers(tensor: TensorMetadata, values: Sequence[Any]) -> Tensor:
    datatype = BY_PROTOCOL_NAME[tensor.datatype]
    data = np.asarray(values, dtype=datatype.dtype).tobytes()
    return Tensor(tensor.name, datatype, _shape(tensor, len(values)), data)


def _strings(tensor: TensorMetadata, values: list[Any]) -> Tensor:
    return Tensor(tensor.name, DataType.BYTES, _shape(tensor, len(values)), encode_bytes_elements(values))


def decode_text_response(response: InferenceResponse, names: TensorNames) -> TextPart:
    """The piece of text in a response; a response without outputs has an empty one.

    Raises:
        Internal: the model has given something else than a text.
    """
    part = TextPart()
    for tensor in response.outputs:
        name = tensor.name
        if name == names.text_output:
            part.text = _text_of(tensor)
        elif name == names.num_output_tokens:
            part.output_tokens = _number_of(tensor)
        elif name == names.num_input_tokens:
            part.input_tokens = _number_of(tensor)
        elif name == names.finish_reason:
            reason = _text_of(tensor)
            part.finish_reason = "" if reason == "None" else reason
        elif name == names.logprobs:
            part.logprobs = _logprobs_of(tensor, response.model_name)
    if response.parameters and isinstance(cached := response.parameters.get("cached_tokens"), int):
        part.cached_tokens = cached
    return part


def _text_of(tensor: Tensor) -> str:
    """The only element of a STRING tensor; broken UTF-8 is replaced."""
    data = tensor.data
    size = len(data)
    if size >= 4 and int.from_bytes(data[:4], "little") == size - 4:
        return str(data[4:], "utf-8", "replace")
    elements = decode_bytes_elements(data)
    if not elements:
        return ""
    raise Internal(f"Expected to find 1 string in the output, found {len(elements)} instead: '{tensor.name}'")


def _number_of(tensor: Tensor) -> int:
    size = tensor.datatype.itemsize
    return int.from_bytes(tensor.data[:size], "little") if size and tensor.datatype.dtype.kind in "ui" else 0


def _logprobs_of(tensor: Tensor, model: str) -> list[dict[str, dict[str, Any]]] | None:
    text = _text_of(tensor)
    if text in ("", "None", "null"):
        return None
    try:
        return _LOGPROBS.decode(text)
    except msgspec.MsgspecError as error:
        raise Internal(f"model '{model}': output '{tensor.name}' is not logprobs as JSON: {error}") from None


_LOGPROBS = msgspec.json.Decoder(list[dict[str, dict[str, Any]]])
