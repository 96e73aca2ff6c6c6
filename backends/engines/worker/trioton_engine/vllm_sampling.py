"""vLLM's sampling parameters, from those of the engine port."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from .engine import Sampling, Structure

FEATURES = frozenset(
    {
        *("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "logprobs"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words"),
        *(f"structure.{kind}" for kind in ("json", "json_object", "regex", "grammar", "choice", "structural_tag")),
    }
)
# Those for which a model's generation_config.json may have values of its own.
DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
# Fields of `Sampling` that vLLM's parameters have under the same name.
_SAME = (
    *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "ignore_eos", "logprobs"),
)


def sampling_params(sampling: Sampling, defaults: Mapping[str, Any]) -> SamplingParams:
    """vLLM's parameters, for one generation; `defaults` are those of the model's generation_config.json. Raises
    ValueError."""
    asked = {name: getattr(sampling, name) for name in _SAME}
    given: dict[str, Any] = {**defaults, **{name: value for name, value in asked.items() if value is not None}}
    if sampling.stop_token_ids:
        given["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        given["logit_bias"] = dict(sampling.logit_bias)
    if sampling.bad_words:
        given["bad_words"] = list(sampling.bad_words)
    if sampling.structure is not None:
        given["structured_outputs"] = _structured(sampling.structure)
    return SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA, skip_clone=True, **given)


def _structured(structure: Structure) -> StructuredOutputsParams:
    if structure.kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    value = json.loads(structure.value) if structure.kind == "choice" else structure.value
    return StructuredOutputsParams(**{structure.kind: value})
