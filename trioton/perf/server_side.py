"""The server's side of a measurement: what its statistics and metrics say of the same window. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """Of one model in one window; all its versions together. Durations are mean seconds of a request.

    Attributes:
        composing: of an ensemble, its models.
        batch_sizes: how many batches of each size have run.
        percentiles: of the server's own latency, in seconds, interpolated within the buckets of its histogram.
    """

    model: str
    succeeded: int = 0
    failed: int = 0
    inferences: int = 0
    executions: int = 0
    request: float = 0.0
    queue: float = 0.0
    compute_input: float = 0.0
    compute_infer: float = 0.0
    compute_output: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_hit: float = 0.0
    cache_miss: float = 0.0
    batch_sizes: Mapping[int, int] = field(default_factory=dict)
    percentiles: Mapping[float, float] = field(default_factory=dict)
    composing: tuple[ServerFigures, ...] = ()

    @property
    def mean_batch(self) -> float:
        """Inferences of one execution."""
        return self.inferences / self.executions if self.executions else 0.0
