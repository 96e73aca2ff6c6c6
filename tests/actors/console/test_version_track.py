"""The last 15 minutes of a version: points, idle times, times when nobody looked, and a bound for all."""

from __future__ import annotations

from actors.console.counters import Counters
from actors.console.version_track import POINTS, STEP, VersionRings, VersionTrack
from actors.metrics.statistics import VersionStatistics


def sampled(rings: VersionRings, track: VersionTrack, statistics: VersionStatistics, now: float, requests: int) -> None:
    for _ in range(requests):
        statistics.count_cache_hit(0.001)
    rings.note_sample(now)
    track.take(Counters.of(statistics), now)
    rings.end_slot("m", track, 0, now)


def test_points_idle_times_and_gaps() -> None:
    """Ten requests in the second slot, none in the third, and then nobody looks for a while."""
    rings, statistics = VersionRings(), VersionStatistics()
    statistics.watch_durations()
    track = VersionTrack(statistics, Counters.of(statistics), 0.0)
    for now in range(15):
        sampled(rings, track, statistics, float(now), 2 if 5 < now <= 10 else 0)
    history = rings.history("m", now=29.0, wall=1029.0)
    assert history.step == STEP
    assert len(history.series["rate"]) == POINTS - 1
    assert history.series["rate"][-6:] == [None, 0.0, 2.0, 0.0, None, None]
    assert history.series["p50"][-4] is not None
    assert history.series["p50"][-3] is None
    assert history.start + STEP * (len(history.series["rate"]) - 5) == 1000.0


def test_the_rings_have_a_bound_and_the_busiest_stay() -> None:
    rings = VersionRings(most=3)
    statistics = VersionStatistics()
    for name in "abca":
        track = VersionTrack(statistics, Counters.of(statistics), 0.0)
        statistics.count_cache_hit(0.001)
        track.take(Counters.of(statistics), 1.0)
        rings.end_slot(name, track, 0, 6.0)
    size = rings.nbytes
    track = VersionTrack(statistics, Counters.of(statistics), 0.0)
    statistics.count_cache_hit(0.001)
    track.take(Counters.of(statistics), 1.0)
    rings.end_slot("d", track, 0, 6.0)
    assert (len(rings), rings.nbytes) == (3, size)
    rings.note_sample(6.0)
    assert all(value in (None, 0.0) for value in rings.history("b", 11.0, 11.0).series["rate"])
    assert any(rings.history("a", 11.0, 11.0).series["rate"])
