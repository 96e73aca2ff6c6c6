"""All metrics of a server: its sources of series, and their text for a scraper.

Flow: actors, machine → [sources] → exposition → `protocol.http.metrics_page`. Each server has sources of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from actors.capture.capture import Capture
from actors.jobs.figures import RunnerFigures
from actors.lifecycle.residence import ResidenceSnapshot
from actors.lifecycle.snapshots import LoadSnapshot
from actors.metrics.custom import FamilyValues
from actors.metrics.exemplars import Exemplars
from actors.metrics.statistics import VersionSnapshot
from actors.quotas.store import ExchangeFigures
from backends.devices.devices import Devices
from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from protocol.open_connections import OpenConnections
from protocol.quotas.usage import Usage
from protocol.sync.sliced import Sliced
from trioton.control_groups import memory_limits
from trioton.gpus import Gpus
from trioton.loop_lag import LoopLag
from trioton.machine import Machine
from trioton.metrics.capture import capture_series
from trioton.metrics.custom import custom_series
from trioton.metrics.edges import EdgeReading, edge_series
from trioton.metrics.exposition import Exposition
from trioton.metrics.families import Source
from trioton.metrics.jobs import job_series
from trioton.metrics.keys import key_series
from trioton.metrics.machine import cpu_series, gpu_series, pinned_memory_series
from trioton.metrics.models import model_series
from trioton.metrics.processes import build_series, process_series
from trioton.metrics.quotas import quota_series
from trioton.metrics.residence import residence_series
from trioton.metrics.server import (
    connection_series,
    defect_series,
    lag_series,
    load_series,
    log_event_series,
    lost_line_series,
    lost_trace_series,
    refusal_series,
)


class Metrics:
    """Those of one server.

    Args:
        snapshots: what has been counted so far, per model version; asked for one by one.
        interval: how old the machine's readings may be, in seconds.
        limits: the refusals of the edges.
        failures: the defects that callbacks have raised.
        lost_traces: how many traces could not be written so far.
        lost_lines: how many lines of each log could not.
        keys: what each key has used, by name.
        log_events: how many events were logged, by level; nothing where the log is not the server's.
        loads: what has become of loads.
        lag: how late tasks of the loop get their turn.
        connections: those that are open.
        edges: those of edge processes, if there are any.
        capture: what captures payloads, if anything does.
        has_counters: `--metrics-config counter_latencies`.
        custom: the metrics of the models' own.
        has_cpu: whether the machine's processors and memory are shown.
        gpus: the GPUs to show, if any; the caller runs them.
        residence: how the memory budget is used; None where there is none.
        devices: whose pool of pinned memory is shown.
        exemplars: traced requests.
        jobs: the figures of the jobs; None where there are none.
        quotas: those of quotas that servers share; None where they do not.
    """

    def __init__(
        self,
        snapshots: Callable[[], Iterable[VersionSnapshot]],
        *,
        interval: float,
        limits: LimitCounter | None = None,
        failures: CallbackFailures | None = None,
        lost_traces: Callable[[], int] = lambda: 0,
        lost_lines: Callable[[], Mapping[str, int]] = dict,
        keys: Callable[[], Mapping[str, Usage]] = dict,
        log_events: Callable[[], Mapping[str, int]] = dict,
        loads: Callable[[], LoadSnapshot] = LoadSnapshot,
        lag: LoopLag | None = None,
        connections: OpenConnections | None = None,
        capture: Capture | None = None,
        has_counters: bool = True,
        custom: Callable[[], Iterable[FamilyValues]] = tuple,
        has_cpu: bool = True,
        gpus: Gpus | None = None,
        residence: Callable[[], ResidenceSnapshot | None] = lambda: None,
        devices: Devices | None = None,
        exemplars: Exemplars | None = None,
        jobs: Callable[[], RunnerFigures | None] = lambda: None,
        quotas: Callable[[], ExchangeFigures | None] = lambda: None,
        edges: Callable[[], Sequence[EdgeReading]] = tuple,
    ) -> None:
        refusals, defects, pinned = limits or LimitCounter(), failures or CallbackFailures(), devices or Devices()
        traced, machine = exemplars or Exemplars(), Machine(interval, groups=memory_limits)
        lags, counted = lag or LoopLag(), connections or OpenConnections()
        sources: list[Source] = [
            lambda: model_series(snapshots(), has_counters=has_counters, gpus=gpus, exemplars=traced),
            lambda: refusal_series(refusals),
            lambda: defect_series(defects),
            lambda: lost_trace_series(lost_traces()),
            lambda: lost_line_series(lost_lines()),
            lambda: key_series(keys),
            lambda: quota_series(quotas),
            lambda: log_event_series(log_events()),
            lambda: load_series(loads()),
            lambda: lag_series(lags.snapshot(), edges()),
            lambda: connection_series(counted),
            lambda: edge_series(edges()),
            build_series,
            process_series,
            lambda: capture_series(capture),
            lambda: pinned_memory_series(pinned),
            lambda: residence_series(residence),
            lambda: job_series(jobs),
        ]
        if has_cpu:
            sources.append(lambda: cpu_series(machine))
        if gpus is not None:
            sources.append(lambda: gpu_series(gpus))
        sources.append(lambda: custom_series(custom))
        self.sources: Sequence[Source] = sources
        self._exposition = Exposition(sources)

    def render(self, is_openmetrics: bool = False) -> Sliced[list[bytes]]:
        """As `Exposition.render`."""
        return self._exposition.render(is_openmetrics)
