"""Tensors of TensorRT-LLM's LLM-API model (`sampling_param_…`, `streaming`), and their reader. Pure.

Chosen by the parameter `tensor_names: "llm_api"`. A stream's responses have all text so far. A request with `stop` ends
those that run by the same id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from backends.engines.tensors.images import given_urls
from backends.engines.tensors.request import TEXT_INPUT, AnswerOptions, TextRequest, as_bool, one_text, sampling_values
from backends.engines.tensors.sampling import parse_sampling
from backends.engines.tensors.values import greedy_unless_asked, refuse_others, single, values_of
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest

_ONE, _MANY = (1,), (-1,)
_PREFIX = "sampling_param_"
_IMAGE = "image_url"
_EXTRAS = ("finish_reason", "stop_reason", "cumulative_logprob")

# Name, datatype and dims.
INPUTS = (
    (TEXT_INPUT, DataType.BYTES, _ONE),
    (_IMAGE, DataType.BYTES, _MANY),
    ("streaming", DataType.BOOL, _ONE),
    ("stop", DataType.BOOL, _ONE),
    *((f"return_{name}", DataType.BOOL, _ONE) for name in _EXTRAS),
    *((f"{_PREFIX}{name}", DataType.INT32, _ONE) for name in ("best_of", "top_k", "max_tokens")),
    *(
        (f"{_PREFIX}{name}", DataType.FP32, _ONE)
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")
    ),
    (f"{_PREFIX}seed", DataType.UINT64, _ONE),
    (f"{_PREFIX}stop", DataType.BYTES, _MANY),
    *((f"{_PREFIX}{name}", DataType.BOOL, _ONE) for name in ("exclude_input_from_output", "return_perf_metrics")),
    (f"{_PREFIX}logits_post_processor_name", DataType.BYTES, _ONE),
    ("lora_id", DataType.UINT64, _ONE),
    *((name, DataType.BYTES, _ONE) for name in ("lora_name", "lora_path", "lora_ckpt_source")),
)
OUTPUTS = (
    ("text_output", DataType.BYTES, _MANY),
    ("finish_reason", DataType.BYTES, _MANY),
    ("stop_reason", DataType.BYTES, _MANY),
    ("cumulative_logprob", DataType.FP32, _MANY),
)
_ONLY: Mapping[str, Collection[Any]] = {
    f"{_PREFIX}return_perf_metrics": (False,),
    f"{_PREFIX}logits_post_processor_name": ("",),
    "lora_ckpt_source": ("hf",),
}
_SAME = (*("best_of", "temperature", "top_k", "top_p", "frequency_penalty", "presence_penalty", "max_tokens", "seed"),)


def parse_llm_api(request: InferenceRequest) -> TextRequest:
    """Raises InvalidArgument."""
    where = f"model '{request.model_name}'"
    tensors = {tensor.name: tensor for tensor in request.inputs}
    given = {name: values_of(tensor, where) for name, tensor in tensors.items() if name not in (TEXT_INPUT, _IMAGE)}
    refuse_others(given, _ONLY, where)
    one = single(given, {*_ONLY, f"{_PREFIX}stop"}, where)
    if one.get("stop"):
        if not request.id:
            raise InvalidArgument(f"{where}: A request id must be provided for request cancellation")
        return TextRequest("", parse_sampling({}, where), AnswerOptions(), stops_id=request.id)
    if TEXT_INPUT not in tensors:
        raise InvalidArgument(f"{where}: the input '{TEXT_INPUT}' is missing")
    extras = frozenset(name for name in _EXTRAS if one.get(f"return_{name}") or name in request.requested_outputs)
    sampling = parse_sampling(_sampling(request, given, one, extras, where), where)
    is_streaming = bool(one.get("streaming", False))
    shows_prompt = one.get(f"{_PREFIX}exclude_input_from_output") is False
    options = AnswerOptions(
        is_streaming=is_streaming,
        has_prompt=shows_prompt and not is_streaming,
        extras=extras,
        known=_EXTRAS,
        row=(1,) * (len(tensors[TEXT_INPUT].shape) - 1),
        accumulates=True,
        stop=sampling.stops,
        includes_stop=sampling.include_stop_str_in_output,
        skips_special_tokens=sampling.skip_special_tokens,
    )
    adds = as_bool(request.parameters.get("add_special_tokens", True), f"{where}: add_special_tokens")
    images = given_urls(tensors[_IMAGE], where) if _IMAGE in tensors else ()
    return TextRequest(one_text(tensors[TEXT_INPUT], where), sampling, options, adds, images=images)


def _sampling(
    request: InferenceRequest,
    given: Mapping[str, list[Any]],
    one: Mapping[str, Any],
    extras: Collection[str],
    where: str,
) -> dict[str, Any]:
    fields = dict(sampling_values(request.parameters, None, where))
    fields |= {name: one[f"{_PREFIX}{name}"] for name in _SAME if f"{_PREFIX}{name}" in one}
    if texts := [text for text in given.get(f"{_PREFIX}stop", ()) if text]:
        fields["stop"] = texts
    if one.get("lora_name"):
        fields["lora_name"] = one["lora_name"]
    if "cumulative_logprob" in extras:
        fields.setdefault("logprobs", 0)
    return greedy_unless_asked(fields)
