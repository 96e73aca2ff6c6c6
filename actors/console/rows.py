"""Rows of the console: one for each version, made from the model table and what was counted since the last sample.

Reads between two checkpoints what others own; keeps only the tracks of versions (`version_track`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from actors.console.counters import Counters, Delta, latency
from actors.console.version_track import VersionRings, VersionTrack
from actors.lifecycle.table import ModelEntry, ModelState, ModelTable, VersionEntry
from actors.model.servable import Servable
from protocol.console.records import VersionRow, cut
from repository.model_config import ModelConfig
from repository.traffic_split import is_split

Key: TypeAlias = tuple[str, str]


def kind_of(config: ModelConfig) -> str:
    if is_split(config):
        return "split"
    return "ensemble" if config.is_ensemble else "instances"


@dataclass(eq=False, slots=True)
class Totals:
    """Sums over all versions of a sample."""

    successes: float = 0.0
    failures: float = 0.0
    queue: int = 0
    durations: NDArray[np.int64] | None = None
    states: dict[str, int] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        self.successes += delta.rate
        self.failures += delta.failure_rate
        if delta.durations is not None:
            self.durations = delta.durations if self.durations is None else self.durations + delta.durations

    @property
    def latency(self) -> tuple[float | None, float | None]:
        """As `actors.console.counters.Delta.latency`."""
        return (None, None) if self.durations is None else latency(self.durations)


class Rows:
    """Makes the rows; the tracks are those of the versions that it has seen last."""

    def __init__(self) -> None:
        self.rings = VersionRings()
        self._tracks: dict[Key, VersionTrack] = {}

    def rest(self) -> None:
        """Nobody looks any more: what is counted until somebody does is not of that second."""
        self.keep(set(), forgets=False)

    def sample(
        self, table: ModelTable, accepted: Mapping[tuple[str, int], int], totals: Totals, now: float
    ) -> Iterator[VersionRow]:
        """A row at a time: who asks may let others run in between, while versions come and go."""
        self.rings.note_sample(now)
        for entry in sorted(table.entries.values(), key=lambda entry: entry.name):
            for version in sorted(entry.versions.values(), key=lambda version: version.version):
                yield self._row(entry, version, accepted, totals, now)
            if not entry.versions and (entry.failure or entry.lock.locked()):
                state = ModelState.UNAVAILABLE if entry.failure else ModelState.LOADING
                totals.states[state.value] = totals.states.get(state.value, 0) + 1
                yield VersionRow(entry.name, "", state.value, cut(entry.failure))

    def keep(self, keys: set[Key], *, forgets: bool = True) -> None:
        """End the tracks of all other versions; with `forgets` they are gone, and their history with them."""
        for key in self._tracks.keys() - keys:
            self._end_track(key)
            if forgets:
                self.rings.forget(key)

    def _end_track(self, key: Key) -> None:
        track = self._tracks.pop(key, None)
        if track is not None:
            track.statistics.unwatch_durations()

    def _row(
        self,
        entry: ModelEntry,
        version: VersionEntry,
        accepted: Mapping[tuple[str, int], int],
        totals: Totals,
        now: float,
    ) -> VersionRow:
        state = version.state.value
        totals.states[state] = totals.states.get(state, 0) + 1
        name, number = entry.name, str(version.version)
        reason = cut(entry.reload_failure if version.state is ModelState.READY else version.reason)
        model = version.model or entry.evicted.get(version.version)
        if model is None:
            self._end_track((name, number))
            return VersionRow(name, number, state, reason)
        delta = self._delta((name, number), model, now)
        queue = model.pending_count
        totals.queue += queue
        p50 = p99 = None
        if delta is not None:
            totals.add(delta)
            p50, p99 = delta.latency
        return VersionRow(
            name,
            number,
            state,
            reason,
            backend=model.config.backend or model.config.platform,
            kind=kind_of(model.config),
            is_ready=version.state is ModelState.READY and model.is_ready,
            rate=delta.rate if delta else 0.0,
            failures=delta.failure_rate if delta else 0.0,
            p50=p50,
            p99=p99,
            queue=queue,
            in_flight=accepted.get((name, version.version), 0),
            batch=delta.batch if delta else None,
            hits=round(delta.hits / delta.seconds, 3) if delta and delta.seconds else 0.0,
            misses=round(delta.misses / delta.seconds, 3) if delta and delta.seconds else 0.0,
        )

    def _delta(self, key: Key, model: Servable, now: float) -> Delta | None:
        """What has happened since the last sample; None for nothing."""
        track = self._tracks.get(key)
        routed = sum(count for _, _, role, count in model.routed() if role == "primary")
        if track is None or track.statistics is not model.statistics:  # a new one, or loaded anew
            self._end_track(key)
            model.statistics.watch_durations()
            self._tracks[key] = VersionTrack(model.statistics, Counters.of(model.statistics, routed), now)
            return None
        delta = None
        if track.counters.activity != (*model.statistics.activity(), routed):
            delta = track.take(Counters.of(model.statistics, routed), now)
        else:
            track.at = now
        self.rings.end_slot(key, track, model.pending_count, now)
        return delta
