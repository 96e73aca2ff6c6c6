"""What is counted of an engine, by scripted times: each histogram gets what vLLM's of that name has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.metrics.custom import CustomMetrics, MetricValue
from backends.engines.metrics.engine import EngineMetrics, Timing
from backends.engines.metrics.metric_set import MetricSet
from backends.engines.worker.trioton_engine.engine import EngineInfo, Stats
from backends.interface import InstanceSpec, ModelSource
from backends.services import BackendServices
from protocol.failures import CallbackFailures
from repository.model_config import ModelConfig

LABELS = {"model_name": "m", "engine": "m_0", "model": "m", "version": "1"}
WITH_ADAPTERS = EngineInfo(frozenset({"adapter"}), adapters=2)


class Counted:
    """Engine metrics, and what they show."""

    def __init__(self, info: EngineInfo | None = None, context_length: int = 100) -> None:
        self.custom = CustomMetrics()
        self.time_of_day = 1e9
        self.metrics = EngineMetrics(
            MetricSet(self.custom, LABELS, context_length),
            info=info or EngineInfo(),
            adapters=("a", "b"),
            time_of_day=lambda: self.time_of_day,
        )

    def values(self, name: str) -> list[MetricValue]:
        return self.custom.find(name)

    def value(self, name: str, **labels: str) -> float:
        [found] = [each for each in self.values(name) if each.labels == {**LABELS, **labels}]
        return found.value

    def observed(self, name: str) -> tuple[int, Any]:
        """How many there were, and their sum."""
        [found] = self.values(name)
        return found.cumulative[-1], pytest.approx(found.value)

    def own(self, name: str) -> list[tuple[dict[str, str], float]]:
        """The values of a family, with the labels that not all have."""
        return [
            ({key: each.labels[key] for key in each.labels.keys() - LABELS.keys()}, each.value)
            for each in self.values(name)
        ]


def finish(counted: Counted, timing: Timing, reason: str, now: float) -> None:
    counted.metrics.finish(timing, reason, now, prompt_tokens=7, most_tokens=20)


def request(counted: Counted, *, arrival: float, tokens: Mapping[float, int], queued: float = 0.0) -> Timing:
    """One that is submitted a second after it came, alone."""
    timing = Timing(arrival)
    timing.submitted = arrival + 1
    for now, count in tokens.items():
        if not timing.first:
            counted.metrics.first(timing, 7, 3, queued, now)
        counted.metrics.tokens(timing, count, now)
        counted.metrics.step(now)
    return timing


def test_the_times_of_a_request() -> None:
    counted = Counted()
    timing = request(counted, arrival=10.0, queued=0.5, tokens={12.0: 1, 12.5: 1, 14.0: 2})
    finish(counted, timing, "stop", 14.0)
    assert {
        name: counted.observed(f"vllm:{name}")
        for name in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "time_per_output_token_seconds",
            "request_time_per_output_token_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_inference_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_max_num_generation_tokens",
            "iteration_tokens_total",
            "request_params_n",
            "request_params_max_tokens",
        )
    } == {
        "time_to_first_token_seconds": (1, 2.0),
        "inter_token_latency_seconds": (2, 2.0),
        "time_per_output_token_seconds": (2, 2.0),
        "request_time_per_output_token_seconds": (1, 2.0 / 3),
        "e2e_request_latency_seconds": (1, 4.0),
        "request_queue_time_seconds": (1, 1.5),
        "request_inference_time_seconds": (1, 2.5),
        "request_prefill_time_seconds": (1, 0.5),
        "request_decode_time_seconds": (1, 2.0),
        "request_prompt_tokens": (1, 7.0),
        "request_generation_tokens": (1, 4.0),
        "request_max_num_generation_tokens": (1, 4.0),
        "iteration_tokens_total": (3, 11.0),
        "request_params_n": (1, 1.0),
        "request_params_max_tokens": (1, 20.0),
    }
    assert counted.value("vllm:prompt_tokens_total") == 7
    assert counted.value("vllm:prompt_tokens_cached_total") == 3
    assert counted.value("vllm:generation_tokens_total") == 4


def test_the_time_between_tokens_of_many_requests() -> None:
    """Those that got tokens in the step before are counted at once, the others by their own times."""
    counted = Counted()
    timings = [Timing(0.5) for _ in range(3)]

    def step(now: float, *places: int) -> None:
        for place in places:
            if not timings[place].first:
                counted.metrics.first(timings[place], 1, -1, 0.0, now)
            counted.metrics.tokens(timings[place], 1, now)
        counted.metrics.step(now)

    step(1.0, 0, 1, 2)
    step(1.02, 0, 1)
    step(1.03)  # of which nothing came, as of one that only tells the load
    step(1.06, 0, 1, 2)
    [found] = counted.values("vllm:inter_token_latency_seconds")
    assert found.cumulative[:4] == [0, 2, 4, 5]  # 0.02 twice, 0.04 twice, 0.06
    assert found.value == pytest.approx(2 * 0.02 + 2 * 0.04 + 0.06)


def test_ends_by_their_reasons() -> None:
    """Times are those of answers: one that was given up says nothing of how long an answer takes."""
    counted = Counted()
    finish(counted, request(counted, arrival=1.0, tokens={3.0: 1}), "length", 3.0)
    finish(counted, request(counted, arrival=1.0, tokens={3.0: 1}), "abort", 4.0)
    finish(counted, request(counted, arrival=1.0, tokens={}), "error", 4.0)
    finish(counted, request(counted, arrival=1.0, tokens={}), "length", 4.0)
    assert {labels["finished_reason"]: value for labels, value in counted.own("vllm:request_success_total")} == {
        "stop": 0,
        "length": 2,
        "abort": 1,
        "error": 1,
    }
    assert counted.observed("vllm:e2e_request_latency_seconds") == (2, 5.0)
    assert counted.observed("vllm:request_decode_time_seconds")[0] == 1  # one ended without a token
    assert counted.observed("vllm:request_time_per_output_token_seconds")[0] == 0  # nor has one more than one


def test_refusals_by_the_limit() -> None:
    counted = Counted()
    counted.metrics.reject("max_num_queued_tokens")
    assert {labels["reason"]: value for labels, value in counted.own("vllm:admission_rejections_total")} == {
        "max_num_queued_reqs": 0,
        "max_num_queued_tokens": 1,
    }


def test_the_load_of_the_engine_and_of_one_that_takes_its_place() -> None:
    """Counters of the next one begin at 0, and go on here."""
    counted = Counted()
    counted.metrics.begin(Stats(cache_blocks=64, block_tokens=16, prefix_queries=5), 0)
    counted.metrics.note(Stats(2, 1, 0.5, 64, 16, 3, 105, 50), 4)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert [counted.value(f"vllm:{name}") for name in names] == [2, 5, 0.5, 0.5]
    assert counted.own("vllm:cache_config_info") == [({"block_size": "16", "num_gpu_blocks": "64"}, 1)]
    counted.metrics.end()
    assert [counted.value(f"vllm:{name}") for name in names] == [0, 0, 0, 0]
    counted.metrics.begin(Stats(cache_blocks=32, block_tokens=16), 0)
    counted.metrics.note(Stats(1, 0, 0.25, 32, 16, 1, 10, 5), 0)
    assert counted.own("vllm:cache_config_info") == [({"block_size": "16", "num_gpu_blocks": "32"}, 1)]
    counters = ("num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total")
    assert [counted.value(f"vllm:{name}") for name in counters] == [4, 110, 55]


def test_an_unknown_cache_is_not_shown() -> None:
    counted = Counted()
    counted.metrics.begin(Stats(), 0)
    assert counted.own("vllm:cache_config_info") == []


@pytest.mark.parametrize(("level", "state"), [(0, "awake"), (1, "weights_offloaded"), (2, "discard_all")])
def test_the_state_of_sleep(level: int, state: str) -> None:
    counted = Counted()
    counted.metrics.sleep(level)
    shown = {labels["sleep_state"]: value for labels, value in counted.own("vllm:engine_sleep_state")}
    assert shown == {**dict.fromkeys(("awake", "weights_offloaded", "discard_all"), 0), state: 1}


# Adapters


def lora_info(counted: Counted) -> tuple[str, str, str, float]:
    [(labels, value)] = counted.own("vllm:lora_requests_info")
    return labels["running_lora_adapters"], labels["waiting_lora_adapters"], labels["max_lora"], value


def test_which_adapters_are_used_now() -> None:
    counted = Counted(WITH_ADAPTERS)
    adapters = counted.metrics.adapters
    assert lora_info(counted) == ("", "", "2", 1e9)
    for name in ("b", "a", "a"):
        adapters.queue(name)
    assert lora_info(counted)[:2] == ("", "a,b")
    counted.time_of_day += 5
    adapters.submit("b")
    assert lora_info(counted) == ("b", "a", "2", 1e9 + 5)
    adapters.submit("a")
    adapters.withdraw("a")
    assert lora_info(counted)[:2] == ("a,b", "")
    adapters.finish("a")
    adapters.finish("b")
    assert lora_info(counted)[:2] == ("", "")
    names = ("trioton_lora_requests_running", "trioton_lora_requests_waiting")
    assert [[value for _, value in counted.own(name)] for name in names] == [[0, 0], [0, 0]]


def test_an_engine_without_adapters_shows_nothing_of_them() -> None:
    counted = Counted()
    assert not [family.name for family in counted.custom.values() if "lora" in family.name]


def test_what_an_adapter_has_done() -> None:
    counted = Counted(WITH_ADAPTERS)
    timing = Timing(1.0)
    timing.adapter = counted.metrics.adapters.queue("a")
    counted.metrics.adapters.submit("a")
    timing.submitted = 1.5
    counted.metrics.first(timing, 7, 2, 0.0, 2.0)
    counted.metrics.tokens(timing, 1, 2.0)
    counted.metrics.tokens(timing, 1, 3.0)
    counted.metrics.adapters.finish("a")
    finish(counted, timing, "stop", 3.0)
    assert {
        name: counted.own(f"trioton_lora_{name}_total")
        for name in (
            "request_success",
            "prompt_tokens",
            "prompt_tokens_cached",
            "generation_tokens",
            "time_to_first_token_seconds",
            "request_queue_time_seconds",
            "e2e_request_latency_seconds",
        )
    } == {
        "request_success": [({"adapter": "a"}, 1)],
        "prompt_tokens": [({"adapter": "a"}, 7)],
        "prompt_tokens_cached": [({"adapter": "a"}, 2)],
        "generation_tokens": [({"adapter": "a"}, 2)],
        "time_to_first_token_seconds": [({"adapter": "a"}, 1.0)],
        "request_queue_time_seconds": [({"adapter": "a"}, 0.5)],
        "e2e_request_latency_seconds": [({"adapter": "a"}, 2.0)],
    }


def test_an_adapter_that_is_removed_is_shown_until_its_requests_have_ended() -> None:
    counted = Counted(WITH_ADAPTERS)
    adapters = counted.metrics.adapters
    timing = Timing(1.0)
    timing.adapter = adapters.queue("a")
    adapters.submit("a")
    adapters.keep({"b"})
    assert [labels for labels, _ in counted.own("trioton_lora_requests_running")] == [{"adapter": "a"}]
    adapters.finish("a")
    finish(counted, timing, "stop", 2.0)  # told of it only now
    shown = [family.name for family in counted.custom.values() if list(family.values)]
    assert not [name for name in shown if name.startswith("trioton_")]


# What is shown when


def spec_of(custom: CustomMetrics | None, shared: dict[str, object], name: str = "m_0") -> InstanceSpec:
    services: Any = None if custom is None else BackendServices(SimpleNamespace(), custom, CallbackFailures())
    config = ModelConfig(name="m")
    return InstanceSpec(ModelSource("m", 1, Path("m"), config, services=services, shared=shared), name)


def test_an_instance_that_is_started_anew_goes_on_counting() -> None:
    custom, shared = CustomMetrics(), dict[str, object]()
    info = EngineInfo()
    first = EngineMetrics.of(spec_of(custom, shared), context_length=10, info=info, adapters=())
    first.reject("max_num_queued_reqs")
    assert EngineMetrics.of(spec_of(custom, shared), context_length=10, info=info, adapters=()) is first
    other = EngineMetrics.of(spec_of(custom, shared, "m_1"), context_length=10, info=info, adapters=())
    assert other is not first
    assert {each.labels["engine"] for each in custom.find("vllm:num_requests_running")} == {"m_0", "m_1"}
    EngineMetrics.retire(spec_of(custom, shared))
    assert {each.labels["engine"] for each in custom.find("vllm:num_requests_running")} == {"m_1"}
    EngineMetrics.retire(spec_of(custom, shared, "m_1"))
    EngineMetrics.retire(spec_of(custom, shared, "never was"))
    assert (list(custom.values()), shared) == ([], {})


def test_a_load_with_another_context_length_takes_the_place_of_the_one_before() -> None:
    """Both are there for a while, as a model is loaded anew without a gap."""
    custom = CustomMetrics()
    shared: list[dict[str, object]] = [{}, {}]
    for lengths, each in zip((10, 100), shared, strict=True):
        EngineMetrics.of(spec_of(custom, each), context_length=lengths, info=EngineInfo(), adapters=())
    [found] = custom.find("vllm:request_prompt_tokens")
    assert found.bounds[-1] == 100
    EngineMetrics.retire(spec_of(custom, shared[0]))
    [found] = custom.find("vllm:request_prompt_tokens")
    assert found.bounds[-1] == 100
    EngineMetrics.retire(spec_of(custom, shared[1]))
    assert list(custom.values()) == []


@pytest.mark.parametrize("custom", [None, CustomMetrics(is_enabled=False)], ids=["no server", "off"])
def test_without_metrics_counting_goes_nowhere(custom: CustomMetrics | None) -> None:
    metrics = EngineMetrics.of(spec_of(custom, {}), context_length=0, info=WITH_ADAPTERS, adapters=("a",))
    metrics.begin(Stats(cache_blocks=1, block_tokens=1), 0)
    timing = Timing(1.0)
    timing.adapter = metrics.adapters.queue("a")
    metrics.adapters.submit("a")
    metrics.first(timing, 1, 1, 0.0, 2.0)
    metrics.tokens(timing, 1, 2.0)
    metrics.step(2.0)
    metrics.adapters.finish("a")
    metrics.finish(timing, "stop", 2.0, prompt_tokens=1, most_tokens=1)
    metrics.end()
    metrics.close()


def test_without_histograms_the_rest_is_shown() -> None:
    custom = CustomMetrics(has_histograms=False)
    EngineMetrics.of(spec_of(custom, {}), context_length=0, info=EngineInfo(), adapters=())
    kinds = {family.kind for family in custom.values()}
    assert kinds == {"gauge", "counter"}


def test_a_name_that_a_model_has_taken_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    """A `model.py` may make vLLM's families itself; those of the same kind are shared."""
    custom = CustomMetrics()
    custom.family("vllm:num_requests_running", "", "counter")
    custom.family("vllm:prompt_tokens_total", "", "counter").metric({"model": "other"}, ()).increment(1)
    EngineMetrics.of(spec_of(custom, {}), context_length=0, info=EngineInfo(), adapters=())
    assert custom.find("vllm:num_requests_running") == []
    assert len(custom.find("vllm:prompt_tokens_total")) == 2
    assert "model 'm' shows no vllm:num_requests_running" in caplog.text
