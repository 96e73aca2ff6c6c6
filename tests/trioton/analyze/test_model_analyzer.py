"""Files of Model Analyzer: what is taken, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.analyze.flags import AnalyzeFlags
from trioton.analyze.model_analyzer import read_model_analyzer
from trioton.flags.fields import UsageError
from trioton.perf.bounds import LatencyBound

pytest.importorskip("yaml", reason="PyYAML is not installed")

WHOLE = """
model_repository: /models
profile_models:
  resnet:
    cpu_only: true
    parameters: {batch_sizes: 4}
    constraints: {perf_latency_p95: {max: 20}}
    objectives: [perf_throughput]
client_protocol: http
run_config_search_mode: quick
perf_analyzer_path: /opt/perf_analyzer
output_model_repository_path: /tmp/out
"""


def read(tmp_path: Path, text: str, flags: AnalyzeFlags | None = None) -> tuple[str, AnalyzeFlags]:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    return read_model_analyzer(path, flags or AnalyzeFlags())


def test_a_whole_file(tmp_path: Path) -> None:
    repository, flags = read(tmp_path, WHOLE)
    assert repository == "/models"
    assert (flags.model, flags.batch, flags.protocol, flags.objective) == ("resnet", 4, "http", "throughput")
    assert flags.latency == LatencyBound(95.0, 0.02)


def test_flags_win(tmp_path: Path) -> None:
    given = AnalyzeFlags(latency=LatencyBound(99.0, 0.005), batch=2)
    _, flags = read(tmp_path, WHOLE, given)
    assert (flags.latency, flags.batch) == (given.latency, 2)


@pytest.mark.parametrize("models", ["m", "[m]", "{m: {}}", "[{m: {objectives: [perf_throughput]}}]", "{m: null}"])
def test_forms_of_models(tmp_path: Path, models: str) -> None:
    assert read(tmp_path, f"model_repository: r\nprofile_models: {models}\n")[1].model == "m"


def test_other_objectives_and_short_forms(tmp_path: Path) -> None:
    text = (
        "model_repository: r\nprofile_models: m\nlatency_budget: 15\nobjectives: [cpu_used_ram]\nrequest_rate: [50]\n"
    )
    _, flags = read(tmp_path, text)
    assert (flags.objective, flags.rate, flags.latency) == ("memory", 50.0, LatencyBound(99.0, 0.015))
    text = "model_repository: r\nprofile_models: m\nobjectives: {perf_latency_p99: 10}\n"
    assert read(tmp_path, text)[1].objective == "latency"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("gpus: [0]", "gpus"),
        ("bls_composing_models: [a]", "bls_composing_models"),
        ("triton_launch_mode: docker", "triton_launch_mode: expected local, got 'docker'"),
        ("run_config_search_mode: manual", "run_config_search_mode"),
        ("concurrency: [1, 2]", "concurrency"),
        ("constraints: {gpu_used_memory: {max: 200}}", r"constraints\.gpu_used_memory"),
        ("constraints: {perf_latency_p99: {min: 200}}", "expected max: <milliseconds>"),
        ("constraints: {perf_latency_p99: {max: 2}, perf_latency_avg: {max: 1}}", "expected one of them"),
        ("objectives: {perf_throughput: 2, perf_latency_p99: 1}", "several cannot be weighed"),
        ("objectives: [gpu_free_memory]", r"objectives\.gpu_free_memory"),
        ("batch_sizes: [1, 2]", "expected one size"),
        ("batch_sizes: many", "expected numbers"),
        ("request_rate: 5", "expected one rate"),
    ],
)
def test_what_is_refused_by_name(tmp_path: Path, more: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read(tmp_path, f"model_repository: r\nprofile_models: m\n{more}\n")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("profile_models: m", "model_repository: expected a path"),
        ("model_repository: r", "expected one model, got 0"),
        ("model_repository: r\nprofile_models: [a, b]", "expected one model, got 2"),
        ("model_repository: r\nprofile_models: {m: {model_config_parameters: {}}}", "model_config_parameters"),
        ("model_repository: r\nprofile_models: {m: {parameters: {concurrency: 2}}}", "rates are looked for"),
        ("- a list", "the file: expected a map"),
        ("a: [", "cannot be read"),
        ("!!python/object/apply:os.system ['true']", "cannot be read"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_model_analyzer(tmp_path / "no.yaml", AnalyzeFlags())
