"""Proposals from an observation: what a change of the configuration would do, and how sure that is. Pure.

The formula is asked about the configuration as it is, too. Half of what it is off there, as a factor, is taken for what
it is off elsewhere, and a formula that is far off is not trusted.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trioton.analyze.live.observation import Observation
from trioton.analyze.search.queueing import Setup, latency

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
# Of processors: beyond this use they slow each other down.
FULL = 0.9
_GAIN = 0.9  # a proposal makes latency at least so much less
_FAR_OFF, _NEAR = 3.0, 1.5
_FEW_REQUESTS, _ENOUGH_REQUESTS = 100, 1_000
_BURSTY = 3.0
_MARGIN = 0.8  # of a bound that is to be kept with fewer instances


class Sureness(enum.StrEnum):
    LIKELY = "likely"
    POSSIBLE = "possible"
    GUESS = "a guess"


@dataclass(frozen=True, slots=True)
class Current:
    """The configuration that serves. `has_batcher` is whether a batcher may have a delay."""

    instances: int
    max_batch: int
    delay: float = 0.0
    has_batcher: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of one setting.

    Attributes:
        settings: by name, the options as `trioton.analyze.space` has them.
        before, after: the p99 as it is and as it is predicted, in seconds; infinite for an overload.
        reasons: what makes it less sure.
    """

    text: str
    settings: dict[str, str]
    before: float
    after: float
    sureness: Sureness
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the formula is worth here: `factor` is what was observed beside what it predicts."""

    factor: float
    sureness: Sureness
    reasons: tuple[str, ...]


def propose(seen: Observation, current: Current, bound: float | None = None, most: int = 5) -> list[Proposal]:
    """The most useful first; none where nothing is known, or nothing helps. With a bound that is kept by far, fewer
    instances are proposed that keep it, too."""
    if seen.times is None or seen.p99 is None or not seen.requests:
        return []
    judged = judge_formula(seen, current)
    found: list[Proposal] = []
    keeps = bound is not None and seen.p99.value <= bound
    for text, settings, changed in _changes(current):
        after = math.sqrt(judged.factor) * _predicted(seen, changed, current)
        is_less = changed.instances < current.instances
        if is_less and (not keeps or bound is None or after > _MARGIN * bound):
            continue
        if not is_less and (after > _GAIN * seen.p99.value or keeps):
            continue
        reasons, sureness = _surer(seen, judged, changed)
        found.append(Proposal(text, settings, seen.p99.value, after, sureness, reasons))
    order = list(Sureness)
    if keeps:
        return sorted(found, key=lambda each: int(each.settings.get("instances", current.instances)))[:most]
    return sorted(found, key=lambda each: (not _helps(each, bound), order.index(each.sureness), each.after))[:most]


def judge_formula(seen: Observation, current: Current) -> Judged:
    """By the configuration as it is."""
    assert seen.p99 is not None
    predicted = _predicted(seen, current, current)
    factor = seen.p99.value / predicted if math.isfinite(predicted) and predicted > 0 else math.inf
    reasons = []
    level = 0
    if not 1 / _FAR_OFF <= factor <= _FAR_OFF:
        reasons.append("the formula does not explain the latency as it is")
        level = 2
        factor = min(max(factor, 1 / _FAR_OFF), _FAR_OFF)
    elif not 1 / _NEAR <= factor <= _NEAR:
        reasons.append(
            f"the formula is off by a factor of {max(factor, 1 / factor):.1f} for the configuration as it is"
        )
        level = 1
    if seen.requests < _FEW_REQUESTS:
        reasons.append(f"{seen.requests} requests are few")
        level = 2
    elif seen.requests < _ENOUGH_REQUESTS:
        reasons.append(f"{seen.requests} requests were seen")
        level = max(level, 1)
    if seen.p99.is_coarse:
        ends = f"{1e3 * seen.p99.low:g} and {1e3 * seen.p99.high:g} ms"
        reasons.append(f"p99 is known to lie between {ends} (--metrics-config=histogram_latencies=true tells more)")
        level = max(level, 1)
    if seen.burstiness > _BURSTY:
        reasons.append(f"requests come in bursts ({seen.burstiness:.0f} times as uneven as independent ones)")
        level = max(level, 1)
    return Judged(factor, list(Sureness)[level], tuple(reasons))


def _helps(proposal: Proposal, bound: float | None) -> bool:
    return bound is None or proposal.after <= bound


def _changes(current: Current) -> Iterator[tuple[str, dict[str, str], Current]]:
    for count in _COUNTS:
        if count != current.instances and current.instances / 4 <= count <= 2 * current.instances + 1:
            yield (
                f"instances {current.instances} -> {count}",
                {"instances": str(count)},
                replace(current, instances=count),
            )
    if not current.has_batcher:
        if current.max_batch > 1:
            yield "dynamic batching", {"batcher": "on"}, replace(current, has_batcher=True)
        return
    if current.delay:
        for part in (0.0, 0.5):
            micros = round(1e6 * part * current.delay)
            yield (
                f"max_queue_delay_microseconds {round(1e6 * current.delay)} -> {micros}",
                {"delay": f"{micros}us"},
                replace(current, delay=micros / 1e6),
            )
    if current.max_batch:
        doubled = 2 * current.max_batch
        yield (
            f"max_batch_size {current.max_batch} -> {doubled}",
            {"batch": str(doubled)},
            replace(current, max_batch=doubled),
        )


def _predicted(seen: Observation, changed: Current, current: Current) -> float:
    """The p99 by the formula alone. Where the processors' use is told, more instances than they have room for slow
    each other down; what they use now is in the times as they are."""
    assert seen.times is not None
    contention = 1.0
    if seen.processor_use is not None and changed.instances > current.instances:
        wanted = seen.processor_use * changed.instances / current.instances
        contention = max(1.0, wanted / FULL)
    batch = max(1, changed.max_batch) if changed.has_batcher else 1
    setup = Setup(
        seen.times,
        changed.instances,
        batch,
        changed.delay if changed.has_batcher else 0.0,
        contention,
        max(1.0, seen.burstiness),
    )
    return latency(setup, seen.rate * seen.rows, 99.0)


def _surer(seen: Observation, judged: Judged, changed: Current) -> tuple[tuple[str, ...], Sureness]:
    """A change to sizes that no batch had is less sure."""
    assert seen.times is not None
    largest = max(size for size, _ in seen.times.points)
    if changed.has_batcher and changed.max_batch > 2 * largest and seen.mean_batch > largest / 2:
        return (*judged.reasons, f"no batch was larger than {largest}"), max(
            judged.sureness, Sureness.POSSIBLE, key=list(Sureness).index
        )
    return judged.reasons, judged.sureness


def as_lines(model: str, proposals: Sequence[Proposal]) -> list[str]:
    """As people read them."""
    lines = []
    for each in proposals:
        before, after = (
            f"{1e3 * value:.3g}" if math.isfinite(value) else "endless" for value in (each.before, each.after)
        )
        why = f": {'; '.join(each.reasons)}" if each.reasons else ""
        lines.append(f"{model}: {each.text}: predicted p99 {before} -> {after} ms ({each.sureness}{why})")
    return lines
