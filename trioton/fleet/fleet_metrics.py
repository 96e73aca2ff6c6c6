"""The fleet's own metrics, on its metrics port; those of replicas are scraped from each, see `/v2/fleet/targets`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trioton.fleet.replicas import Phase
from trioton.fleet.scaler import Scaler
from trioton.fleet.supervisor import Supervisor
from trioton.metrics.families import Family, Sample, Series, gauge

_REPLICAS = Family("trioton_fleet_replicas", "gauge", "Number of replicas by phase")
_RESTARTS = Family("trioton_fleet_failures_total", "counter", "Number of replicas that have ended by themselves")


def fleet_series(supervisor: Supervisor, scaler: Scaler) -> Iterator[Series]:
    phases = Counter(each.phase for each in supervisor.registry)
    for phase in (Phase.STARTING, Phase.SERVING, Phase.DRAINING):
        yield Series(_REPLICAS, (("phase", str(phase)),), (Sample(phases[phase]),))
    yield gauge("trioton_fleet_wanted_replicas", "Number of replicas that there should be", supervisor.count)
    yield Series(_RESTARTS, (), (Sample(supervisor.restarts),))
    if scaler.signal is not None:
        yield gauge("trioton_fleet_scaling_signal", "The signal that the number of replicas follows", scaler.signal)
