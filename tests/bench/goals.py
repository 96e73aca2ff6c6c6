"""What the benchmark is held to: the goal of each row, and of the server as such. Consulted by `report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.bench.rows import Row

# Of idle memory and of the time to ready, ours over the other's.
SIZE_LIMIT = 1.5
# Percent of a request's processor time, of the metrics and logs that are on by default.
DEFAULT_COST_LIMIT = 3.0
# Of REST over HTTP/2: a request's processor time in the server over that of HTTP/1.1.
HTTP2_COST_LIMIT = 1.5
# Of live requests: their p99 beside a job over that without one.
JOBS_TAIL_LIMIT = 1.25
# Of p99 over p50, with TAIL_CONCURRENCY requests in flight.
TAIL_LIMIT, TAIL_CONCURRENCY = 4.0, 64


@dataclass(frozen=True, slots=True)
class Goal:
    """Ours over the other's: throughput with models in workers and in the server's process, at least; p50 with models
    in workers, at most."""

    worker: float
    in_process: float
    p50: float


_SMALL_HTTP, _SMALL_GRPC, _LARGE = Goal(1.4, 2.0, 0.7), Goal(1.7, 3.0, 0.6), Goal(1.2, 1.5, 0.85)
_THROUGH_SHM = Goal(1.2, 1.7, 0.85)
GOALS: Mapping[Row, Goal] = {
    Row("add_sub", "http", 1): Goal(1.2, 1.7, 0.8),
    Row("add_sub", "http", 16): _SMALL_HTTP,
    Row("add_sub", "http", 64): _SMALL_HTTP,
    Row("add_sub", "grpc", 1): Goal(1.15, 1.5, 0.85),
    Row("add_sub", "grpc", 16): _SMALL_GRPC,
    Row("add_sub", "grpc", 64): _SMALL_GRPC,
    Row("add_sub", "stream", 16): Goal(1.5, 2.5, 0.7),
    Row("add_sub", "json", 16): Goal(1.1, 1.5, 0.9),
    Row("large", "http", 1): _LARGE,
    Row("large", "http", 8): _LARGE,
    Row("large", "grpc", 1): _LARGE,
    Row("large", "grpc", 8): _LARGE,
    Row("large", "shm", 1): _THROUGH_SHM,
    Row("large", "shm", 8): _THROUGH_SHM,
}


def at_least(figure: float | None, goal: float | None) -> str:
    """The goal and whether the figure meets it, as the table's cell says it."""
    return _verdict(figure, goal, "≥", figure is not None and goal is not None and figure >= goal)


def at_most(figure: float | None, goal: float | None) -> str:
    return _verdict(figure, goal, "≤", figure is not None and goal is not None and figure <= goal)


def _verdict(figure: float | None, goal: float | None, sign: str, is_met: bool) -> str:
    if goal is None:
        return "-"
    if figure is None:
        return f"{sign} {goal:.2f}"
    return f"{sign} {goal:.2f} {'met' if is_met else 'not met'}"
