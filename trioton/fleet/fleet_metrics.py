"""The fleet's own metrics, on its metrics port; those of replicas are scraped from each, see `/v2/fleet/targets`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trioton.fleet.replicas import Phase
from trioton.fleet.scaler import Scaler
from trioton.fleet.supervisor import Supervisor
from trioton.metrics.families import Family, Sample, Series

REPLICAS = Family("trioton_fleet_replicas", "gauge", "Number of replicas by phase")
WANTED = Family("trioton_fleet_wanted_replicas", "gauge", "Number of replicas that there should be")
FAILURES = Family("trioton_fleet_failures_total", "counter", "Number of replicas that have ended by themselves")
SIGNAL = Family("trioton_fleet_scaling_signal", "gauge", "The signal that the number of replicas follows")
FAMILIES = (REPLICAS, WANTED, FAILURES, SIGNAL)


def fleet_series(supervisor: Supervisor, scaler: Scaler) -> Iterator[Series]:
    phases = Counter(each.phase for each in supervisor.registry)
    for phase in (Phase.STARTING, Phase.SERVING, Phase.DRAINING):
        yield Series(REPLICAS, (("phase", str(phase)),), (Sample(phases[phase]),))
    yield Series(WANTED, (), (Sample(supervisor.count),))
    yield Series(FAILURES, (), (Sample(supervisor.restarts),))
    if scaler.signal is not None:
        yield Series(SIGNAL, (), (Sample(scaler.signal),))
