"""Model Analyzer, which starts a server for each variant of a model, or loads the variants into one that runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nvidia.programs import (
    MODEL_ANALYZER,
    PERF_ANALYZER,
    build_models,
    free_ports,
    program,
    run,
    tritonserver,
)
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow
TIMEOUT_SECONDS = 600.0
# On a busy machine windows are never alike: any three are taken.
FLAGS = {"stability-percentage": 999, "measurement-request-count": 20}
BRUTE = {
    "run_config_search_mode": "brute",
    "run_config_search_max_instance_count": 2,
    "run_config_search_max_model_batch_size": 2,
    "run_config_search_max_concurrency": 2,
}
QUICK = {
    "run_config_search_mode": "quick",
    "run_config_search_max_instance_count": 2,
    "run_config_search_max_model_batch_size": 2,
    "run_config_search_max_concurrency": 4,
}
OPTUNA = {
    "run_config_search_mode": "optuna",
    "run_config_search_max_instance_count": 2,
    "run_config_search_max_model_batch_size": 2,
    "run_config_search_max_concurrency": 2,
    "optuna_min_trials": 2,
    "optuna_max_trials": 3,
}


def profile(folder: Path, settings: dict[str, Any], perf_analyzer: Path | None = None) -> list[dict[str, str]]:
    """Runs `model-analyzer profile`; the rows of its table of measurements."""
    analyzer = program(MODEL_ANALYZER)
    whole = {
        "checkpoint_directory": str(folder / "checkpoints"),
        "export_path": str(folder / "export"),
        "output_model_repository_path": str(folder / "variants"),
        "override_output_model_repository": True,
        "perf_analyzer_path": str(perf_analyzer or program(PERF_ANALYZER)),
        "perf_analyzer_flags": FLAGS,
        "perf_analyzer_cpu_util": 10_000,
        **settings,
    }
    config = folder / "profile.yaml"
    config.write_text(json.dumps(whole))  # which is YAML, too
    done = run([analyzer, "profile", "-f", config], folder, TIMEOUT_SECONDS)
    assert done.returncode == 0
    with (folder / "export" / "results" / "metrics-model-inference.csv").open() as table:
        return list(csv.DictReader(table))


def local(folder: Path) -> dict[str, Any]:
    """It starts and stops the servers."""
    http, grpc, metrics = free_ports(3)
    return {
        "model_repository": str(build_models(folder / "models")),
        "triton_launch_mode": "local",
        "triton_server_path": str(tritonserver(folder)),
        "triton_output_path": str(folder / "server.log"),
        "triton_http_endpoint": f"localhost:{http}",
        "triton_grpc_endpoint": f"localhost:{grpc}",
        "triton_metrics_url": f"http://localhost:{metrics}/metrics",
    }


def variants(rows: list[dict[str, str]]) -> set[str]:
    return {row["Model Config Path"] for row in rows}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_brute(tmp_path: Path, protocol: str) -> None:
    rows = profile(tmp_path, {**local(tmp_path), **BRUTE, "profile_models": "add_sub", "client_protocol": protocol})
    assert {"add_sub_config_default", "add_sub_config_0", "add_sub_config_3"} <= variants(rows)
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in rows)
    assert (tmp_path / "export" / "reports" / "summaries" / "add_sub" / "result_summary.html").is_file()


def test_quick_with_an_ensemble(tmp_path: Path) -> None:
    """Without `cpu_only` it proposes instances on GPUs, where there may be none."""
    models = {"ensemble": {"cpu_only": True}}
    settings = {"profile_models": models, "cpu_only_composing_models": ["add_sub", "second"]}
    rows = profile(tmp_path, {**local(tmp_path), **QUICK, **settings})
    assert len(variants(rows)) > 1
    assert any(name.startswith("ensemble_config_default") for name in variants(rows))


def test_optuna(tmp_path: Path) -> None:
    models = {"add_sub": {"cpu_only": True}}
    rows = profile(tmp_path, {**local(tmp_path), **OPTUNA, "profile_models": models})
    assert len(variants(rows)) > 1


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_remote_with_models_that_are_not_loaded(tmp_path: Path, protocol: str) -> None:
    """It asks whether each model of the repository is ready, and unloads those that are."""
    program(MODEL_ANALYZER)
    models = build_models(tmp_path / "models")
    with ServerProcess("--model-control-mode=explicit", repository=models) as server:
        remote = {
            "model_repository": str(models),
            "triton_launch_mode": "remote",
            "triton_http_endpoint": server.addresses["http"],
            "triton_grpc_endpoint": server.addresses["grpc"],
            "triton_metrics_url": f"http://{server.addresses['metrics']}/metrics",
            "client_protocol": protocol,
            "profile_models": {"add_sub": {"cpu_only": True}},
        }
        rows = profile(tmp_path, {**remote, **BRUTE})
    assert len(variants(rows)) > 1
