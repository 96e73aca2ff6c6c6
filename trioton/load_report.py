"""Load report (ORCA): how many requests a model has and how many of them wait, and how full the key-value cache of a
language model is.

Flow: the core, and custom metrics of engines and models → [load report] → `protocol.load_report` → header or trailer
of a response. Source: Triton's ORCA headers; those of vLLM's server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean
from typing import TypeAlias

from actors.core.server_core import ServerCore
from actors.metrics.custom import CustomMetrics
from backends.engine_families import CACHE_INFO, CACHE_USAGE, WAITING
from protocol.load_report import UTILIZATION

# TensorRT-LLM's, which a model of its own makes.
FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_LABEL = "kv_cache_block_type"

Report: TypeAlias = Mapping[str, float]


def load_report(core: ServerCore, model: str) -> Report:
    """Figures of a model: those of its cache, and of its requests."""
    cache = cache_report(core.custom_metrics, model)
    load = core.load_of(model)
    waiting = core.waiting_for(model)
    utilization = {}
    if load.capacity:
        utilization[UTILIZATION] = load.in_flight / load.capacity
    elif cache:
        utilization[UTILIZATION] = _usage(cache)
    requests = {"num_requests_running": max(0, load.in_flight - waiting), "num_requests_waiting": waiting}
    return {**cache, **{name: value for name, value in requests.items() if name not in cache}, **utilization}


def cache_report(metrics: CustomMetrics, model: str) -> Report:
    """Figures of a model's cache; empty where no model tells. Of one that has none itself, as an ensemble, the fullest
    model speaks: a balancer asks whether there is room."""
    reports = {**_reports_of_blocks(metrics), **_reports_of_engines(metrics)}
    return reports.get(model) or max(reports.values(), key=_usage, default={})


def _usage(report: Report) -> float:
    return report["kv_cache_usage_perc"] if "kv_cache_usage_perc" in report else report["kv_cache_utilization"]


def _reports_of_engines(metrics: CustomMetrics) -> dict[str, Report]:
    """vLLM's figures, and Triton's where the size of the cache is known, by the models' names: of all instances of a
    model together, since any of them takes its requests."""
    usages: defaultdict[str, list[float]] = defaultdict(list)
    waiting: defaultdict[str, float] = defaultdict(float)
    capacity: defaultdict[str, int] = defaultdict(int)
    for each in metrics.find(CACHE_USAGE.name):
        usages[each.labels.get("model", "")].append(each.value)
    for each in metrics.find(WAITING.name):
        waiting[each.labels.get("model", "")] += each.value
    for each in metrics.find(CACHE_INFO.name):
        labels = each.labels
        capacity[labels.get("model", "")] += int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    reports: dict[str, Report] = {}
    for model, found in usages.items():
        usage = fmean(found)
        reports[model] = {"num_requests_waiting": waiting[model], "kv_cache_usage_perc": usage}
        if model in capacity:
            reports[model] = {
                "kv_cache_utilization": usage,
                "max_token_capacity": capacity[model],
                **reports[model],
            }
    return reports


def _reports_of_blocks(metrics: CustomMetrics) -> dict[str, Report]:
    """By the models' names; of one with several caches, the fullest."""
    caches: dict[frozenset[tuple[str, str]], dict[str, float]] = {}
    for each in metrics.find(FAMILY):
        others = frozenset((name, value) for name, value in each.labels.items() if name != _LABEL)
        caches.setdefault(others, {})[each.labels.get(_LABEL, "")] = each.value
    reports: dict[str, Report] = {}
    for labels, blocks in caches.items():
        if blocks.keys() >= {"tokens_per", "used", "max"}:
            model, report = dict(labels).get("model", ""), _report_of_blocks(blocks)
            reports[model] = max(reports.get(model, report), report, key=_usage)
    return reports


def _report_of_blocks(blocks: Mapping[str, float]) -> Report:
    most = blocks["max"]
    return {
        "kv_cache_utilization": blocks["used"] / most if most else 0.0,
        "max_token_capacity": int(most * blocks["tokens_per"]),
    }
