"""The metric families of an engine: vLLM's names, so that dashboards and balancers made for it work, and some of this
server's own for adapters. Pure data.

Source: vLLM, "Production Metrics"; Triton's vLLM backend.
"""

from __future__ import annotations

from typing import Final

import msgspec

from backends.services import MetricKind


class Family(msgspec.Struct, frozen=True):
    """`bounds` are those of a histogram; without them they follow from the length of the context."""

    name: str
    kind: MetricKind
    description: str
    bounds: tuple[float, ...] = ()


# Bounds in seconds, then in tokens.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1.0, *(float(1 << power) for power in range(3, 15)))
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
# The greatest bound of token counts where the length of the context is unknown.
_UNKNOWN_CONTEXT = 100_000

RUNNING: Final = Family("vllm:num_requests_running", "gauge", "Number of requests that the engine computes")
WAITING: Final = Family(
    "vllm:num_requests_waiting", "gauge", "Number of requests that wait for the engine, or within it"
)
CACHE_USAGE: Final = Family(
    "vllm:kv_cache_usage_perc", "gauge", "Part of the key-value cache that is in use, from 0 to 1"
)
GPU_CACHE_USAGE: Final = Family(
    "vllm:gpu_cache_usage_perc", "gauge", "The same as vllm:kv_cache_usage_perc, by the name of Triton's vLLM backend"
)
CACHE_INFO: Final = Family("vllm:cache_config_info", "gauge", "Blocks of the key-value cache; always 1")
SLEEP_STATE: Final = Family("vllm:engine_sleep_state", "gauge", "1 for the state in which the engine is, 0 for others")
LORA_INFO: Final = Family(
    "vllm:lora_requests_info", "gauge", "Adapters whose requests are computed or wait; the time of the last change"
)

PREEMPTIONS: Final = Family(
    "vllm:num_preemptions_total", "counter", "Number of times that a request had to give up its cache"
)
PREFIX_QUERIES: Final = Family(
    "vllm:prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the cache"
)
PREFIX_HITS: Final = Family("vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were found in the cache")
PROMPT_TOKENS: Final = Family("vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that were begun")
CACHED_TOKENS: Final = Family("vllm:prompt_tokens_cached_total", "counter", "Those of them that were in the cache")
GENERATED_TOKENS: Final = Family("vllm:generation_tokens_total", "counter", "Generated tokens")
FINISHED: Final = Family("vllm:request_success_total", "counter", "Requests that have ended, by how they did")
REJECTIONS: Final = Family(
    "vllm:admission_rejections_total", "counter", "Requests that were refused because too many waited"
)

FIRST_TOKEN: Final = Family(
    "vllm:time_to_first_token_seconds", "histogram", "From a request's arrival to its first token", _FIRST_TOKEN
)
BETWEEN_TOKENS: Final = Family(
    "vllm:inter_token_latency_seconds", "histogram", "Between two steps that gave a request tokens", _BETWEEN_TOKENS
)
TRITON_BETWEEN_TOKENS: Final = Family(
    "vllm:time_per_output_token_seconds",
    "histogram",
    "The same as vllm:inter_token_latency_seconds, by the name of Triton's vLLM backend",
    _BETWEEN_TOKENS[:13],
)
PER_TOKEN: Final = Family(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "Mean time between the tokens of a request",
    _BETWEEN_TOKENS,
)
END_TO_END: Final = Family(
    "vllm:e2e_request_latency_seconds", "histogram", "From a request's arrival to its end", _REQUEST
)
QUEUED: Final = Family(
    "vllm:request_queue_time_seconds", "histogram", "From a request's arrival until it is computed", _REQUEST
)
INFERENCE: Final = Family(
    "vllm:request_inference_time_seconds", "histogram", "From when a request is computed to its last token", _REQUEST
)
PREFILL: Final = Family(
    "vllm:request_prefill_time_seconds", "histogram", "From when a request is computed to its first token", _REQUEST
)
DECODE: Final = Family(
    "vllm:request_decode_time_seconds", "histogram", "From a request's first token to its last one", _REQUEST
)
REQUEST_PROMPT: Final = Family("vllm:request_prompt_tokens", "histogram", "Prompt tokens of a request")
REQUEST_GENERATED: Final = Family("vllm:request_generation_tokens", "histogram", "Generated tokens of a request")
REQUEST_MOST_GENERATED: Final = Family(
    "vllm:request_max_num_generation_tokens", "histogram", "The most generated tokens of a request's choices"
)
STEP_TOKENS: Final = Family(
    "vllm:iteration_tokens_total", "histogram", "Tokens of a step: of prompts that it ended, and new ones", _STEP_TOKENS
)
ASKED_CHOICES: Final = Family("vllm:request_params_n", "histogram", "The parameter n of a request", _CHOICES)
ASKED_TOKENS: Final = Family(
    "vllm:request_params_max_tokens", "histogram", "The most tokens that a request was allowed to generate"
)

LORA_RUNNING: Final = Family("trioton_lora_requests_running", "gauge", "Requests with an adapter in the engine")
LORA_WAITING: Final = Family("trioton_lora_requests_waiting", "gauge", "Requests with an adapter that wait for it")
LORA_FINISHED: Final = Family(
    "trioton_lora_request_success_total", "counter", "Requests with an adapter that have ended well"
)
LORA_PROMPT_TOKENS: Final = Family("trioton_lora_prompt_tokens_total", "counter", "Their prompt tokens")
LORA_CACHED_TOKENS: Final = Family("trioton_lora_prompt_tokens_cached_total", "counter", "Those that were in the cache")
LORA_GENERATED_TOKENS: Final = Family("trioton_lora_generation_tokens_total", "counter", "Their generated tokens")
LORA_FIRST_TOKEN: Final = Family(
    "trioton_lora_time_to_first_token_seconds_total", "counter", "From their arrival to the first token, summed"
)
LORA_QUEUED: Final = Family(
    "trioton_lora_request_queue_time_seconds_total", "counter", "From their arrival until they are computed, summed"
)
LORA_END_TO_END: Final = Family(
    "trioton_lora_e2e_request_latency_seconds_total", "counter", "From their arrival to their end, summed"
)


def bounds_of(family: Family, context_length: int) -> tuple[float, ...]:
    """The bounds of a histogram; of token counts 1, 2, 5, 10, … as far as the context goes. None for other kinds."""
    if family.kind != "histogram" or family.bounds:
        return family.bounds
    longest = context_length or _UNKNOWN_CONTEXT
    powers = range(len(str(longest)))
    return tuple(float(bound) for power in powers for digit in (1, 2, 5) if (bound := digit * 10**power) <= longest)
