"""Reader of the YAML files of NVIDIA's Model Analyzer: what of them means the same here, and what is refused by name.

Taken are the repository, one model, its constraints and objectives, and its batch sizes and rates.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trioton.analyze.flags import AnalyzeFlags
from trioton.analyze.search.aim import Objective
from trioton.flags.fields import UsageError
from trioton.perf.bounds import LatencyBound

_LATENCIES = {"perf_latency_avg": None, "perf_latency_p90": 90.0, "perf_latency_p95": 95.0, "perf_latency_p99": 99.0}
_OBJECTIVES = {
    "perf_throughput": Objective.THROUGHPUT,
    **dict.fromkeys(_LATENCIES, Objective.LATENCY),
    "cpu_used_ram": Objective.MEMORY,
}
# Where files and programs of Model Analyzer and its own server are, and how its output looks: without meaning here.
_WITHOUT_MEANING = frozenset(
    {
        "always_report_gpu_metrics",
        "checkpoint_directory",
        "client_max_retries",
        "collect_cpu_metrics",
        "duration_seconds",
        "export_path",
        "filename_model_gpu",
        "filename_model_inference",
        "filename_server_only",
        "monitoring_interval",
        "num_configs_per_model",
        "num_top_model_configs",
        "output_model_repository_path",
        "override_output_model_repository",
        "perf_analyzer_cpu_util",
        "perf_analyzer_max_auto_adjusts",
        "perf_analyzer_path",
        "perf_analyzer_timeout",
        "plots",
        "triton_grpc_endpoint",
        "triton_http_endpoint",
        "triton_install_path",
        "triton_metrics_url",
        "triton_output_path",
        "triton_server_path",
    }
)
_OWN = frozenset(
    {
        "batch_sizes",
        "client_protocol",
        "constraints",
        "latency_budget",
        "model_repository",
        "objectives",
        "profile_models",
        "request_rate",
        "run_config_search_mode",
        "triton_launch_mode",
    }
)
_OF_A_MODEL = frozenset({"constraints", "cpu_only", "objectives", "parameters"})
_MOST_BYTES = 1 << 20


def read_model_analyzer(path: Path, flags: AnalyzeFlags) -> tuple[str, AnalyzeFlags]:
    """The repository, and flags with what the file says; those that are given win.

    Raises:
        UsageError: it cannot be read, or asks for what is not done here.
    """
    document = _document(path)
    if unknown := sorted(document.keys() - _OWN - _WITHOUT_MEANING):
        raise _refused(path, unknown[0], "is not done by trioton analyze; leave it out")
    repository = document.get("model_repository")
    if not isinstance(repository, str):
        raise _refused(path, "model_repository", f"expected a path, got {repository!r}")
    _check_modes(path, document)
    name, own = _model(path, document.get("profile_models"))
    if unknown := sorted(own.keys() - _OF_A_MODEL):
        raise _refused(path, f"profile_models.{name}.{unknown[0]}", "is not done by trioton analyze; leave it out")
    parameters = _mapping(path, "parameters", own.get("parameters"))
    batch = _batch(path, parameters, document)
    bound = _bound(
        path, {**_budget(path, document), **_mapping(path, "constraints", _either(own, document, "constraints"))}
    )
    objective = _objective(path, _either(own, document, "objectives"))
    rate = _rate(path, parameters, document, objective)
    return repository, replace(
        flags,
        model=flags.model or name,
        latency=flags.latency or bound,
        objective=objective.value if flags.objective == Objective.THROUGHPUT else flags.objective,
        batch=batch if flags.batch == 1 else flags.batch,
        rate=flags.rate or rate,
        protocol="http" if document.get("client_protocol") == "http" else flags.protocol,
    )


def _document(path: Path) -> Mapping[str, Any]:
    if importlib.util.find_spec("yaml") is None:
        raise UsageError("--model-analyzer-config needs a package: pip install 'trioton[analyze]'")
    yaml: Any = importlib.import_module("yaml")

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than any configuration of Model Analyzer")
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return _mapping(path, "the file", found)


def _check_modes(path: Path, document: Mapping[str, Any]) -> None:
    mode = document.get("triton_launch_mode", "local")
    if mode != "local":
        raise _refused(path, "triton_launch_mode", f"expected local, got {mode!r}; for a running server give --live")
    search = document.get("run_config_search_mode", "brute")
    if search not in ("brute", "quick", "optuna"):
        raise _refused(path, "run_config_search_mode", f"expected brute, quick or optuna, got {search!r}")


def _model(path: Path, models: Any) -> tuple[str, Mapping[str, Any]]:
    """A name, a list of one name, or a map of one name to its own settings."""
    if isinstance(models, str):
        models = [each.strip() for each in models.split(",")]
    if isinstance(models, list) and len(models) == 1 and isinstance(models[0], dict):
        [models] = models
    if not isinstance(models, list | dict) or len(models) != 1:
        count = len(models) if isinstance(models, list | dict) else 0
        raise _refused(path, "profile_models", f"expected one model, got {count}; models are analyzed one by one")
    [name] = models
    if not isinstance(name, str):
        raise _refused(path, "profile_models", f"expected a name, got {name!r}")
    own = models[name] if isinstance(models, dict) else None
    return name, _mapping(path, f"profile_models.{name}", own)


def _batch(path: Path, parameters: Mapping[str, Any], document: Mapping[str, Any]) -> int:
    if unknown := sorted(parameters.keys() - {"batch_sizes", "request_rate"}):
        why = "rates are looked for" if unknown[0] == "concurrency" else "it is not done by trioton analyze"
        raise _refused(path, f"parameters.{unknown[0]}", f"{why}; leave it out")
    sizes = _numbers(path, "batch_sizes", _either(parameters, document, "batch_sizes"))
    if len(sizes) > 1:
        raise _refused(path, "batch_sizes", "expected one size of requests")
    return int(sizes[0]) if sizes else 1


def _rate(path: Path, parameters: Mapping[str, Any], document: Mapping[str, Any], objective: Objective) -> float:
    rates = _numbers(path, "request_rate", _either(parameters, document, "request_rate"))
    if not rates:
        return 0.0
    if len(rates) > 1 or objective is Objective.THROUGHPUT:
        raise _refused(path, "request_rate", "expected one rate, for an objective other than throughput")
    return rates[0]


def _numbers(path: Path, key: str, value: Any) -> list[float]:
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in values):
        raise _refused(path, key, f"expected numbers above 0, got {value!r}")
    return [float(each) for each in values]


def _budget(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    budget = document.get("latency_budget")
    return {} if budget is None else {"perf_latency_p99": {"max": budget}}


def _bound(path: Path, constraints: Mapping[str, Any]) -> LatencyBound | None:
    if not constraints:
        return None
    if unknown := sorted(constraints.keys() - _LATENCIES.keys()):
        raise _refused(path, f"constraints.{unknown[0]}", f"expected one of {', '.join(_LATENCIES)}")
    if len(constraints) > 1:
        raise _refused(path, "constraints", "expected one of them")
    [(name, limits)] = constraints.items()
    most = _mapping(path, f"constraints.{name}", limits).get("max")
    if not isinstance(most, int | float) or isinstance(most, bool) or most <= 0:
        raise _refused(path, f"constraints.{name}", f"expected max: <milliseconds>, got {limits!r}")
    return LatencyBound(_LATENCIES[name], most / 1e3)


def _objective(path: Path, objectives: Any) -> Objective:
    """The one of the greatest weight."""
    if objectives is None:
        return Objective.THROUGHPUT
    weights = dict.fromkeys(objectives, 1) if isinstance(objectives, list) else objectives
    weights = {weights: 1} if isinstance(weights, str) else weights
    if not isinstance(weights, dict) or len(weights) != 1:
        raise _refused(path, "objectives", "expected one of them: several cannot be weighed against each other here")
    [name] = weights
    if name not in _OBJECTIVES:
        raise _refused(path, f"objectives.{name}", f"expected one of {', '.join(_OBJECTIVES)}")
    return _OBJECTIVES[name]


def _either(own: Mapping[str, Any], document: Mapping[str, Any], key: str) -> Any:
    return own[key] if key in own else document.get(key)


def _mapping(path: Path, key: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value):
        raise _refused(path, key, f"expected a map, got {value!r:.100}")
    return value


def _refused(path: Path, key: str, reason: str) -> UsageError:
    return UsageError(f"{path}: {key}: {reason}")
