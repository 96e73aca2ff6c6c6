"""Tensors of TensorRT-LLM's ensemble in front of an engine (`text_input`, `max_tokens`, …), and their reader. Pure.

Chosen by the parameter `tensor_names: "tensorrt_llm"`. Every input is honoured, has no effect by its value, or is
refused by its name. Errors name the model and the field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from backends.engines.tensors.images import Given, given_pixels, given_urls
from backends.engines.tensors.request import (
    EXCLUDE_INPUT,
    RETURN_PREFIX,
    STREAM,
    TEXT_INPUT,
    AnswerOptions,
    TextRequest,
    as_bool,
    one_text,
    sampling_values,
)
from backends.engines.tensors.sampling import parse_sampling
from backends.engines.tensors.values import greedy_unless_asked, refuse_others, single, values_of
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor

_ONE, _MANY = (1,), (-1,)
_COUNTS = ("num_input_tokens", "num_output_tokens")
_LOGPROBS = ("cum_log_probs", "output_log_probs")
_INDEXES = ("batch_index", "sequence_index")
# Pictures, as TensorRT-LLM's `tensorrt_llm_bls` has them.
IMAGE_URL, IMAGE_PIXELS = "image_url_input", "image_bytes_input"

# Name, datatype and dims.
INPUTS = (
    (TEXT_INPUT, DataType.BYTES, _ONE),
    ("decoder_text_input", DataType.BYTES, _ONE),
    ("max_tokens", DataType.INT32, _ONE),
    *((name, DataType.BYTES, _MANY) for name in ("bad_words", "stop_words", "embedding_bias_words")),
    ("embedding_bias_weights", DataType.FP32, _MANY),
    *(
        (name, DataType.INT32, _ONE)
        for name in ("num_return_sequences", "end_id", "pad_id", "top_k", "min_tokens", "beam_width")
    ),
    *(
        (name, DataType.FP32, _ONE)
        for name in (
            *("top_p", "temperature", "length_penalty", "repetition_penalty"),
            *("presence_penalty", "frequency_penalty"),
        )
    ),
    ("seed", DataType.UINT64, _ONE),
    *(
        (name, DataType.BOOL, _ONE)
        for name in (
            *(STREAM, EXCLUDE_INPUT, "return_log_probs", "return_context_logits", "return_generation_logits"),
            *("return_perf_metrics", *(f"{RETURN_PREFIX}{name}" for name in _COUNTS)),
        )
    ),
    *((name, DataType.BYTES, _ONE) for name in ("guided_decoding_guide_type", "guided_decoding_guide")),
    ("lora_task_id", DataType.UINT64, _ONE),
    ("lora_weights", DataType.FP16, (-1, -1)),
    ("lora_config", DataType.INT32, (-1, 3)),
    ("prompt_embedding_table", DataType.FP16, (-1, -1)),
    ("prompt_vocab_size", DataType.INT32, _ONE),
    ("prompt_table_extra_id", DataType.UINT64, _ONE),
    (IMAGE_URL, DataType.BYTES, _MANY),
    (IMAGE_PIXELS, DataType.UINT8, (-1, -1, -1, -1)),
    ("image_input", DataType.FP16, (-1, 3, -1, -1)),
    ("video_bytes_input", DataType.UINT8, (-1, -1, -1, -1)),
)
OUTPUTS = (
    ("text_output", DataType.BYTES, _MANY),
    ("cum_log_probs", DataType.FP32, _MANY),
    ("output_log_probs", DataType.FP32, (-1, -1)),
    *((name, DataType.INT32, _ONE) for name in (*_INDEXES, *_COUNTS)),
)
_EXTRAS = (*_LOGPROBS, *_INDEXES, *_COUNTS)

# Those that only have these values; a list of none is refused whatever it has.
_ONLY: Mapping[str, Collection[Any]] = {
    "decoder_text_input": ("",),
    "embedding_bias_words": ("",),
    "embedding_bias_weights": (0.0,),
    "num_return_sequences": (1,),
    "beam_width": (1,),
    "length_penalty": (0.0, 1.0),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "return_perf_metrics": (False,),
    **dict.fromkeys(("lora_weights", "lora_config", "prompt_embedding_table", "prompt_vocab_size"), ()),
    "prompt_table_extra_id": (),
}
# Refused without a look at them: they are large.
_REFUSED = ("image_input", "video_bytes_input")
# Those that are sampling fields by the same name.
_SAME = (
    *("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed"),
)
# The kinds of a guide, by the words of TensorRT-LLM.
_GUIDES = {
    "json": "json_object",
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_NO_END = -1


def parse_tensorrt_llm(request: InferenceRequest) -> TextRequest:
    """Raises InvalidArgument."""
    where = f"model '{request.model_name}'"
    tensors = {tensor.name: tensor for tensor in request.inputs}
    if TEXT_INPUT not in tensors:
        raise InvalidArgument(f"{where}: the input '{TEXT_INPUT}' is missing")
    for name in _REFUSED:
        if name in tensors:
            raise InvalidArgument(f"{where}: '{name}' is not supported")
    apart = (TEXT_INPUT, IMAGE_URL, IMAGE_PIXELS)
    given = {name: values_of(tensor, where) for name, tensor in tensors.items() if name not in apart}
    refuse_others(given, _ONLY, where)
    one = single(given, {*_ONLY, "bad_words", "stop_words"}, where)
    wanted = set(request.requested_outputs)
    extras = {*_INDEXES, *(name for name in _COUNTS if one.get(f"{RETURN_PREFIX}{name}"))}
    if one.get("return_log_probs") or wanted & {*_LOGPROBS}:
        extras |= {*_LOGPROBS}
    values = greedy_unless_asked({**sampling_values(request.parameters, None, where), **_sampling(given, one, where)})
    if extras & {*_LOGPROBS}:
        values.setdefault("logprobs", 0)
    sampling = parse_sampling(values, where)
    is_streaming = bool(one.get(STREAM, False))
    options = AnswerOptions(
        is_streaming=is_streaming,
        has_prompt=not (is_streaming or one.get(EXCLUDE_INPUT, False)),
        extras=frozenset(extras),
        known=_EXTRAS,
        row=(1,) * (len(tensors[TEXT_INPUT].shape) - 1),
        counts=DataType.INT32,
        stop=sampling.stops,
        includes_stop=sampling.include_stop_str_in_output,
        skips_special_tokens=sampling.skip_special_tokens,
    )
    adds = as_bool(request.parameters.get("add_special_tokens", True), f"{where}: add_special_tokens")
    return TextRequest(one_text(tensors[TEXT_INPUT], where), sampling, options, adds, images=_images(tensors, where))


def _images(tensors: Mapping[str, Tensor], where: str) -> list[Given]:
    if IMAGE_URL in tensors and IMAGE_PIXELS in tensors:
        raise InvalidArgument(f"{where}: '{IMAGE_URL}' and '{IMAGE_PIXELS}' exclude each other")
    if IMAGE_URL in tensors:
        return given_urls(tensors[IMAGE_URL], where)
    return given_pixels(tensors[IMAGE_PIXELS], where) if IMAGE_PIXELS in tensors else []


def _sampling(given: Mapping[str, list[Any]], one: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The sampling fields that inputs stand for."""
    fields = {name: one[name] for name in _SAME if name in one}
    for name, field in (("stop_words", "stop"), ("bad_words", "bad_words")):
        if texts := [text for text in given.get(name, ()) if text]:
            fields[field] = texts
    if (end := one.get("end_id")) is not None:
        fields |= {"ignore_eos": True} if end == _NO_END else {"stop_token_ids": [end]}
    if (task := one.get("lora_task_id")) is not None:
        fields["lora_name"] = str(task)
    if (structure := _structure(one, where)) is not None:
        fields["structured_outputs"] = structure
    return fields


def _structure(one: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    kind, guide = one.get("guided_decoding_guide_type", ""), one.get("guided_decoding_guide", "")
    if not kind and not guide:
        return None
    if kind not in _GUIDES:
        known = ", ".join(_GUIDES)
        raise InvalidArgument(f"{where}: 'guided_decoding_guide_type' must be one of {known}, got {kind!r:.40}")
    return {_GUIDES[kind]: True if kind == "json" else guide}
