"""Load report (ORCA): key-value cache utilisation of a language model, from the model's own metrics.

Flow: custom metrics of a model → registry → [load report] → `protocol.http.handlers.load_report` → header of a
response. Source: Triton's ORCA headers.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_LABEL = "kv_cache_block_type"


def load_report(registry: CollectorRegistry) -> Mapping[str, float]:
    """`kv_cache_utilization` and `max_token_capacity`; empty where no model tells. Of several models, the fullest one
    speaks: a balancer asks whether there is room."""
    models: dict[frozenset[tuple[str, str]], dict[str, float]] = {}
    for metric in registry.collect():
        if metric.name != FAMILY:
            continue
        for sample in metric.samples:
            others = frozenset((name, value) for name, value in sample.labels.items() if name != _LABEL)
            models.setdefault(others, {})[sample.labels.get(_LABEL, "")] = sample.value
    reports = [_report(blocks) for blocks in models.values() if blocks.keys() >= {"tokens_per", "used", "max"}]
    return max(reports, key=lambda report: report["kv_cache_utilization"], default={})


def _report(blocks: Mapping[str, float]) -> dict[str, float]:
    most = blocks["max"]
    return {
        "kv_cache_utilization": blocks["used"] / most if most else 0.0,
        "max_token_capacity": int(most * blocks["tokens_per"]),
    }
