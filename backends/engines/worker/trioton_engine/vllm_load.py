"""Load of vLLM's engine, from the Prometheus registry that it fills in this process; cheap enough for each step."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import REGISTRY

from .engine import Stats

# Families by their places in `Stats`.
_SAMPLES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "cache_usage",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
}
_CACHE = "vllm:cache_config_info"
_SECONDS = 0.02


class VllmLoad:
    """To be made when the engine has been loaded. Read at most every 20 ms, but for the end of the last generation."""

    def __init__(self) -> None:
        self._registry: Any = REGISTRY.restricted_registry([*_SAMPLES])
        self._stats = Stats()
        self._due = 0.0
        for family in REGISTRY.restricted_registry([_CACHE]).collect():
            for sample in family.samples:
                blocks, size = (_number(sample.labels.get(name)) for name in ("num_gpu_blocks", "block_size"))
                self._stats = Stats(cache_blocks=blocks, block_tokens=size if blocks else 0)

    def read(self, *, is_idle: bool) -> Stats:
        """`is_idle` says that nothing is generated any more."""
        now = time.monotonic()
        if now < self._due and not is_idle:
            return self._stats
        self._due = now + _SECONDS
        found: dict[str, float] = dict.fromkeys(_SAMPLES.values(), 0)
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name in _SAMPLES:
                    found[_SAMPLES[sample.name]] += sample.value  # of all its data-parallel ranks
        usage = min(found.pop("cache_usage"), 1.0)
        counts = {name: int(value) for name, value in found.items()}
        self._stats = self._stats._replace(cache_usage=usage, **counts)
        return self._stats


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
