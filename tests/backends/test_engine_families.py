"""Names, kinds and bounds of the metrics of engines are vLLM's."""

from __future__ import annotations

import pytest

from backends import engine_families as families
from backends.engine_families import Family, bounds_of

FAMILIES = [each for each in vars(families).values() if isinstance(each, Family)]
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def test_the_bounds_are_vllms() -> None:
    found = {each.name.removeprefix("vllm:"): bounds_of(each, 2048) for each in FAMILIES if each.kind == "histogram"}
    assert found == {
        "time_to_first_token_seconds": FIRST_TOKEN,
        "inter_token_latency_seconds": BETWEEN,
        "time_per_output_token_seconds": BETWEEN[:13],  # as of Triton's vLLM backend
        "request_time_per_output_token_seconds": BETWEEN,
        "e2e_request_latency_seconds": REQUEST,
        "request_queue_time_seconds": REQUEST,
        "request_inference_time_seconds": REQUEST,
        "request_prefill_time_seconds": REQUEST,
        "request_decode_time_seconds": REQUEST,
        "request_prompt_tokens": TOKENS,
        "request_generation_tokens": TOKENS,
        "request_max_num_generation_tokens": TOKENS,
        "request_params_max_tokens": TOKENS,
        "iteration_tokens_total": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        "request_params_n": (1, 2, 5, 10, 20),
    }


@pytest.mark.parametrize(
    ("context", "last"),
    [(1, 1), (4, 2), (5, 5), (9, 5), (10, 10), (131072, 100_000), (0, 100_000), (1 << 20, 1_000_000)],
)
def test_token_counts_go_as_far_as_the_context(context: int, last: int) -> None:
    found = bounds_of(families.REQUEST_PROMPT, context)
    assert (found[0], found[-1]) == (1, last)
    assert list(found) == sorted(set(found))


def test_each_name_is_there_once() -> None:
    names = [each.name for each in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(each.name.endswith("_total") for each in FAMILIES if each.kind == "counter")
