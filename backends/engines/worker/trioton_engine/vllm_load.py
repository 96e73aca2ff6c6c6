"""Load of vLLM's engine, as each of its steps tells it.

In place of the logger with which vLLM fills a Prometheus registry, token by token, that nobody reads in this process.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger

from .engine import Stats


class VllmLoad(PrometheusStatLogger):  # type: ignore[misc]  # of an unknown type
    """To be given to vLLM as a class, which makes one of it; then that has none of its own kind."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        super().__init__(vllm_config, engine_indexes)
        self._loads: dict[int, tuple[int, int, float]] = {}  # of its data-parallel ranks
        self._counts = [0, 0, 0]
        self._cache = vllm_config.cache_config

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if iteration_stats is not None:
            self._counts[0] += iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self._loads[engine_idx] = (scheduler_stats.num_running_reqs, waiting, scheduler_stats.kv_cache_usage)
            prefixes = scheduler_stats.prefix_cache_stats
            self._counts[1] += prefixes.queries
            self._counts[2] += prefixes.hits

    def reset(self) -> None:
        """Count anew."""
        self._counts = [0, 0, 0]

    def read(self) -> Stats:
        """What is known now: with several ranks their sums, and the fullest cache."""
        running, waiting, usage = 0, 0, 0.0
        for load in self._loads.values():
            running += load[0]
            waiting += load[1]
            usage = max(usage, load[2])
        blocks = self._cache.num_gpu_blocks or 0
        return Stats(running, waiting, usage, blocks, self._cache.block_size if blocks else 0, *self._counts)
