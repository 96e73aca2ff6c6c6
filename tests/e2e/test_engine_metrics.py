"""What readers of vLLM's metrics find in this server's: Prometheus, dashboards, and Kubernetes' endpoint picker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.backends.engines.models import write_model, write_scripted
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

COUNTERS = (
    *("prompt_tokens", "prompt_tokens_cached", "generation_tokens", "num_preemptions", "prefix_cache_queries"),
    *("prefix_cache_hits", "request_success", "admission_rejections"),
)
GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "engine_sleep_state",
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "iteration_tokens_total", "request_max_num_generation_tokens", "request_params_n"),
    "request_params_max_tokens",
)
# What Triton's vLLM backend has beside them.
TRITONS = {"time_per_output_token_seconds": "histogram", "gpu_cache_usage_perc": "gauge"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("engines")
    write_scripted(repository)
    write_model(repository / "tuned", "scripted", {"multi_lora.json": '{"a": "x"}'}, adapters="true", max_loras=3)
    with ServerProcess("--model-control-mode=explicit", "--load-model=*", repository=repository) as started:
        for body in ({"model": "echo"}, {"model": "tuned", "max_tokens": 3}, {"model": "a"}):
            answer = httpx.post(url(started, "v1/completions"), json={"prompt": "one two three", **body}, timeout=60)
            assert answer.status_code == 200, answer.text
        yield started


def url(server: ServerProcess, path: str) -> str:
    return f"http://{server.addresses['http']}/{path}"


def scraped(server: ServerProcess) -> dict[str, Metric]:
    answer = httpx.get(f"http://{server.addresses['metrics']}/metrics", timeout=60)
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def samples(families: Mapping[str, Metric]) -> list[Sample]:
    return [sample for family in families.values() for sample in family.samples]


def select(found: list[Sample], name: str, **labels: str) -> list[float]:
    """The values of a selector, as PromQL has it."""
    return [each.value for each in found if each.name == name and labels.items() <= each.labels.items()]


def test_families_have_vllms_names_kinds_and_labels(server: ServerProcess) -> None:
    families = scraped(server)
    kinds = {
        **dict.fromkeys(COUNTERS, "counter"),
        **dict.fromkeys(GAUGES, "gauge"),
        **dict.fromkeys(HISTOGRAMS, "histogram"),
        **TRITONS,
        "lora_requests_info": "gauge",
    }
    assert {name: family.type for name, family in families.items() if name.startswith("vllm:")} == {
        f"vllm:{name}": kind for name, kind in kinds.items()
    }
    for name in kinds:
        for sample in families[f"vllm:{name}"].samples:
            assert sample.labels.items() >= {"version": "1"}.items()
            assert sample.labels["model_name"] == sample.labels["model"] in ("echo", "endless", "tuned")
            assert sample.labels["engine"].startswith(sample.labels["model_name"])


def test_the_dashboards_of_vllm_find_their_series(server: ServerProcess) -> None:
    """Each selector of its board, filtered by `model_name` as there; what has run shows in each that counts."""
    found = samples(scraped(server))
    for name in (
        *("e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds"),
        *("request_time_per_output_token_seconds", "request_prompt_tokens", "request_generation_tokens"),
        *("request_max_num_generation_tokens", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds", "iteration_tokens_total"),
    ):
        assert select(found, f"vllm:{name}_bucket", model_name="echo", le="+Inf")[0] > 0, name
        assert select(found, f"vllm:{name}_sum", model_name="echo")
        assert select(found, f"vllm:{name}_count", model_name="echo")[0] > 0
    for name in ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total"):
        assert select(found, f"vllm:{name}", model_name="echo")[0] > 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
        assert select(found, f"vllm:{name}", model_name="echo") == [0]
    reasons = {
        each.labels["finished_reason"]: each.value
        for each in found
        if each.name == "vllm:request_success_total" and each.labels["model_name"] == "echo"
    }
    assert reasons == {"stop": 1, "length": 0, "abort": 0, "error": 0}
    assert select(found, "vllm:engine_sleep_state", model_name="echo", sleep_state="awake") == [1]


def test_the_dashboards_of_tritons_vllm_backend_find_theirs(server: ServerProcess) -> None:
    """With its labels, `model` and `version`."""
    found = samples(scraped(server))
    for name in (
        *("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"),
        *("request_prompt_tokens", "request_generation_tokens", "request_params_n"),
    ):
        assert select(found, f"vllm:{name}_count", model="echo", version="1")[0] > 0
    assert select(found, "vllm:prompt_tokens_total", model="echo", version="1")[0] > 0
    assert select(found, "vllm:generation_tokens_total", model="echo", version="1")[0] > 0


def test_the_endpoint_picker_of_kubernetes_finds_what_it_asks_for(server: ServerProcess) -> None:
    """The model server protocol of the Gateway API's inference extension: queue, running, cache, its size, adapters."""
    families = scraped(server)
    found = samples(families)
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert families[f"vllm:{name}"].type == "gauge"
        assert select(found, f"vllm:{name}", model_name="tuned") == [0]
    [size] = [
        each.labels for each in found if each.name == "vllm:cache_config_info" and each.labels["model"] == "tuned"
    ]
    assert (int(size["block_size"]), int(size["num_gpu_blocks"])) == (16, 4096)
    [adapters] = [each for each in found if each.name == "vllm:lora_requests_info"]
    assert (adapters.labels["max_lora"], adapters.labels["waiting_lora_adapters"]) == ("3", "")
    assert adapters.labels["running_lora_adapters"] == ""
    assert adapters.value > 1e9, "when it changed last, by which the newest is told"
    assert select(found, "trioton_lora_request_success_total", model_name="tuned", adapter="a") == [1]


def test_histograms_are_whole(server: ServerProcess) -> None:
    """Buckets ascend, and the last one is the count."""
    for family in scraped(server).values():
        if family.type == "histogram" and family.name.startswith("vllm:"):
            for model in ("echo", "endless", "tuned"):
                mine = [each for each in family.samples if each.labels["model_name"] == model]
                buckets = [each for each in mine if each.name.endswith("_bucket")]
                assert [float(each.labels["le"]) for each in buckets] == sorted(
                    {float(each.labels["le"]) for each in buckets}
                )
                values = [each.value for each in buckets]
                assert values == sorted(values)
                assert [values[-1]] == select(mine, f"{family.name}_count")


def test_an_unloaded_model_is_gone(server: ServerProcess) -> None:
    assert httpx.post(url(server, "v2/repository/models/endless/unload"), json={}).status_code == 200
    models = {each.labels["model_name"] for each in samples(scraped(server)) if each.name.startswith("vllm:")}
    assert models == {"echo", "tuned"}


def test_histograms_can_be_left_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A model then costs some 3 kB of a scrape."""
    repository = tmp_path_factory.mktemp("engines")
    write_model(repository / "echo", "scripted")
    with ServerProcess("--metrics-config", "histogram_latencies=false", repository=repository) as server:
        families = scraped(server)
        assert not [name for name in families if name.removeprefix("vllm:") in HISTOGRAMS]
        assert "vllm:num_requests_running" in families
