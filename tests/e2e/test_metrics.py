"""The metrics of a running server rise with what it does."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess

COMPUTE = ("compute_input", "compute_infer", "compute_output")


def scrape(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics", timeout=TIMEOUT_SECONDS) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text: str = response.read().decode()
    return text


def values(server: ServerProcess, model: str, **labels: str) -> dict[str, float]:
    """The samples of one model by name, as they stand in the text."""
    return {
        sample.name.removesuffix("_total"): sample.value  # the parser's own ending, not the server's
        for family in text_string_to_metric_families(scrape(server))
        for sample in family.samples
        if labels.items() <= sample.labels.items() and sample.labels.get("model") == model
    }


def test_counters_rise_with_the_work(server: ServerProcess, client: Client) -> None:
    """Five requests of two rows each, one execution each; the model's tag is a label."""
    before = values(server, "add_sub", version="1", _team="e2e")
    for _ in range(5):
        client.infer("add_sub", add_sub_inputs(2), model_version="1")
    after = values(server, "add_sub", version="1", _team="e2e")
    rise = {name: after[name] - before[name] for name in before}
    assert rise["nv_inference_request_success"] == 5
    assert rise["nv_inference_count"] == 10
    assert rise["nv_inference_exec_count"] == 5
    assert rise["nv_inference_request_duration_us"] > 0
    assert rise["nv_inference_compute_infer_duration_us"] > 0
    assert after["nv_inference_pending_request_count"] == 0
    assert after["nv_model_load_duration_secs"] > 0


def test_failures_are_counted_by_reason(server: ServerProcess, client: Client) -> None:
    """A model's exception is a failure of the backend; a request that was refused before is none."""
    before = values(server, "failing", reason="BACKEND")
    with pytest.raises(InferenceServerException):
        client.infer("failing", {"ACTION": np.array([b"raise"], np.object_)})
    with pytest.raises(InferenceServerException):
        client.infer("failing", {"ACTION": np.array([b"raise", b"raise"], np.object_)})
    after = values(server, "failing", reason="BACKEND")
    assert after["nv_inference_request_failure"] - before["nv_inference_request_failure"] == 1


def test_the_machine_is_shown(server: ServerProcess) -> None:
    text = scrape(server)
    for name in ("nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"):
        assert f"# TYPE {name} gauge\n{name} " in text


def test_metrics_are_at_the_http_address_too(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://{server.addresses['http']}/metrics", timeout=TIMEOUT_SECONDS) as response:
        text = response.read().decode()
    own = scrape(server)
    assert [line for line in text.splitlines() if line[0] == "#"] == [
        line for line in own.splitlines() if line[0] == "#"
    ]


@pytest.fixture(scope="module")
def summing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With other groups of metrics than the default."""
    directory = tmp_path_factory.mktemp("models")
    add_add_sub(directory / "add_sub", versions=(1,))
    flags = (
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05,0.75:0.01",
        "--metrics-config=histogram_latencies=false",
        "--allow-cpu-metrics=false",
        "--allow-gpu-metrics=false",
    )
    with ServerProcess(*flags, repository=directory) as process:
        yield process


def test_groups_of_metrics_are_switched_by_flags(summing: ServerProcess) -> None:
    with Client("http", summing.addresses["http"]) as client:
        for _ in range(3):
            client.infer("add_sub", add_sub_inputs(1))
    median = values(summing, "add_sub", quantile="0.5")
    upper = values(summing, "add_sub", quantile="0.75")
    names = {f"nv_inference_{part}_summary_us" for part in ("request", "queue", *COMPUTE)}
    assert set(median) == set(upper) == names
    assert 0 < median["nv_inference_request_summary_us"] <= upper["nv_inference_request_summary_us"]
    assert values(summing, "add_sub")["nv_inference_request_summary_us_count"] == 3
    text = scrape(summing)
    assert "nv_inference_first_response_histogram" not in text
    assert "_histogram_" not in text
    assert "nv_cpu" not in text
    assert "nv_gpu" not in text
    assert "GPU metrics" not in summing.log
