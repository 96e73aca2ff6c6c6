"""Parser of a request to an engine: tensors and parameters in, what is to be generated and answered out. Pure.

The names are those of Triton's vLLM backend. Errors name the model and the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backends.engines.tensors.images import Given, given_files
from backends.engines.tensors.sampling import SamplingFields, parse_sampling
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, ParameterValue, Tensor, decode_bytes_elements

TEXT_INPUT, STREAM, SAMPLING, EXCLUDE_INPUT = "text_input", "stream", "sampling_parameters", "exclude_input_in_output"
IMAGE = "image"
# Triton's vLLM backend has none: the prompt as token ids, for whoever has them.
TOKEN_IDS = "prompt_token_ids"
RETURN_PREFIX = "return_"
# What may be returned beside the text, in the order of the configuration that is completed.
EXTRAS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
FLAGS = (STREAM, EXCLUDE_INPUT, *(f"{RETURN_PREFIX}{name}" for name in EXTRAS))

# What Triton's vLLM backend takes beside these.
_NOT_TAKEN = ("embedding_request",)


class AnswerOptions(msgspec.Struct, frozen=True):
    """What a request wants to be told of its generation.

    Attributes:
        extras: the outputs that are wanted beside the text.
        known: those that there are, in their order.
        row: the dimensions of outputs before their own: those of a batch of one, or none.
        counts: the datatype of numbers of tokens, of 32 bits.
        accumulates: a response has all text so far.
    """

    is_streaming: bool = False
    has_prompt: bool = False
    extras: frozenset[str] = frozenset()
    known: tuple[str, ...] = EXTRAS
    row: tuple[int, ...] = ()
    counts: DataType = DataType.UINT32
    accumulates: bool = False
    stop: tuple[str, ...] = ()
    includes_stop: bool = False
    skips_special_tokens: bool = True


class TextRequest(msgspec.Struct, frozen=True):
    """One request, read. `token_ids` is the prompt where it is not empty; `text` need not say it then. One with
    `stops_id` generates nothing, and ends those that run by that id. `images` are the pictures that it sees."""

    text: str
    sampling: SamplingFields
    options: AnswerOptions
    adds_special_tokens: bool = True
    token_ids: Sequence[int] = ()
    stops_id: str = ""
    images: Sequence[Given] = ()


def parse_request(request: InferenceRequest) -> TextRequest:
    """Raises InvalidArgument."""
    tensors = {tensor.name: tensor for tensor in request.inputs}
    where = f"model '{request.model_name}'"
    flags = {name: _flag(tensors[name], where) for name in FLAGS if name in tensors}
    for name in FLAGS:  # as members of `parameters` in a body of generate
        if name not in flags and name in request.parameters:
            flags[name] = as_bool(request.parameters[name], f"{where}: {name}")
    for name in _NOT_TAKEN:
        if name in tensors or name in request.parameters:
            raise InvalidArgument(f"{where}: '{name}' is not supported")
    if TEXT_INPUT not in tensors:
        raise InvalidArgument(f"{where}: the input '{TEXT_INPUT}' is missing")
    extras = frozenset(name for name in EXTRAS if flags.get(f"{RETURN_PREFIX}{name}", False))
    values = sampling_values(request.parameters, tensors.get(SAMPLING), where)
    if "cumulative_logprob" in extras and values.get("logprobs") is None:  # without them it would be 0
        values = {**values, "logprobs": 0}
    sampling = parse_sampling(values, where)
    is_streaming = flags.get(STREAM, False)
    if is_streaming and flags.get(EXCLUDE_INPUT) is False:
        raise InvalidArgument(f"{where}: When streaming, `{EXCLUDE_INPUT}` = False is not allowed.")
    options = AnswerOptions(
        is_streaming=is_streaming,
        has_prompt=not (is_streaming or flags.get(EXCLUDE_INPUT, False)),
        extras=extras,
        stop=sampling.stops,
        includes_stop=sampling.include_stop_str_in_output,
        skips_special_tokens=sampling.skip_special_tokens,
    )
    return TextRequest(
        one_text(tensors[TEXT_INPUT], where),
        sampling,
        options,
        as_bool(request.parameters.get("add_special_tokens", True), f"{where}: add_special_tokens"),
        _token_ids(tensors.get(TOKEN_IDS), where),
        images=_images(tensors.get(IMAGE), request.parameters.get(IMAGE), where),
    )


def sampling_values(parameters: Mapping[str, ParameterValue], tensor: Tensor | None, where: str) -> Mapping[str, Any]:
    """The JSON of the tensor, which takes the place of parameters; else those parameters that are sampling fields."""
    if tensor is None:
        names = SamplingFields.__struct_fields__
        return {name: _loosened(value) for name, value in parameters.items() if name in names}
    text = one_text(tensor, where)
    try:
        found = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"{where}: '{SAMPLING}' is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{where}: '{SAMPLING}' must be a JSON object, got {text[:100]!r}")
    return found


def _loosened(value: ParameterValue) -> Any:
    """Lists and objects come as texts, since parameters have none."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _images(tensor: Tensor | None, parameter: ParameterValue | None, where: str) -> Sequence[Given]:
    if tensor is not None:
        return given_files(tensor, where)
    return [Given(IMAGE, str(parameter).encode())] if parameter else ()


def one_text(tensor: Tensor, where: str) -> str:
    elements = decode_bytes_elements(tensor.data)
    if len(elements) != 1:
        raise InvalidArgument(f"{where}: '{tensor.name}' must have one element, got {len(elements)}")
    try:
        return elements[0].decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{where}: '{tensor.name}' is not UTF-8: {error}") from None


def _token_ids(tensor: Tensor | None, where: str) -> Sequence[int]:
    if tensor is None:
        return ()
    if tensor.datatype is not DataType.INT32 or not tensor.data:
        raise InvalidArgument(
            f"{where}: '{TOKEN_IDS}' must be INT32 with at least one element, got {tensor.datatype.name} {tensor.shape}"
        )
    return memoryview(tensor.data).cast("B").cast("i")


def _flag(tensor: Tensor, where: str) -> bool:
    if tensor.datatype is not DataType.BOOL or len(tensor.data) != 1:
        raise InvalidArgument(f"{where}: '{tensor.name}' must be one BOOL, got {tensor.datatype.name} {tensor.shape}")
    return bytes(tensor.data) != b"\0"


def as_bool(value: ParameterValue, where: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise InvalidArgument(f"{where} must be true or false, got {value!r}")
