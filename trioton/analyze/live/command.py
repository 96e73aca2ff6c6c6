"""`trioton analyze --live`: watches a running server, and proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from trioton.analyze.bench.http_client import CallFailed, HttpClient
from trioton.analyze.bench.server import ServerFailed
from trioton.analyze.flags import AnalyzeFlags
from trioton.analyze.live.observation import Observation, arrivals_of, observe
from trioton.analyze.live.proposals import FULL, Current, Proposal, as_lines, propose
from trioton.analyze.live.traces import read_traces
from trioton.analyze.live.verify import Verified, verify
from trioton.analyze.live.watch import current_of, models_of, watch
from trioton.flags.fields import UsageError
from trioton.perf.caller import DataError, TargetError
from trioton.perf.data.generated import Generated
from trioton.perf.data.model_data import ModelData
from trioton.perf.data.sources import RANDOM, Sources

_MOST_MODELS = 32


@dataclass(frozen=True, slots=True)
class LiveFindings:
    """Of one model."""

    model: str
    seen: Observation
    current: Current
    proposals: tuple[Proposal, ...]
    verified: Verified | None = None


def run_live(places: Sequence[str], flags: AnalyzeFlags) -> int:
    """Watch, propose and perhaps verify; answers the exit code.

    Raises:
        UsageError: flags that do not go together.
        CallFailed: the server does not answer.
    """
    if places:
        raise UsageError(f"--live takes no repository, got {' '.join(places)}; a copy of it is given with --verify")
    if flags.verify is not None and not flags.model:
        raise UsageError("--verify goes with --model")
    if flags.latency is not None and flags.latency.percent != 99.0:
        raise UsageError(f"--live: --latency: expected a bound on p99, got {flags.latency}")
    found = trio.run(_live, flags)
    print(msgspec.json.encode(_as_json(found)).decode() if flags.json else "\n".join(_lines(found, flags)))
    return 0


async def _live(flags: AnalyzeFlags) -> list[LiveFindings]:
    client = HttpClient(flags.live)
    models = [flags.model] if flags.model else (await models_of(client))[:_MOST_MODELS]
    if not models:
        raise CallFailed(f"no model of {flags.live} has had a request")
    found: dict[str, LiveFindings] = {}
    failures: list[Exception] = []

    async def look(model: str) -> None:
        try:
            found[model] = await _of_model(client, model, flags)
        except (CallFailed, DataError, ServerFailed, TargetError, UsageError) as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for model in models:
            nursery.start_soon(look, model)
    if failures:
        raise failures[0]
    return [found[model] for model in models]


async def _of_model(client: HttpClient, model: str, flags: AnalyzeFlags) -> LiveFindings:
    current, config = await current_of(client, model)
    snapshots = await watch(client, model, flags.live_secs)
    latencies: tuple[float, ...] = ()
    arrivals = arrivals_of(snapshots)
    if flags.trace_file is not None:
        traced = await trio.to_thread.run_sync(read_traces, flags.trace_file, model)
        latencies = traced.latencies
        arrivals = [each - traced.arrivals[0] for each in traced.arrivals] or arrivals
    seen = observe(snapshots, latencies)
    bound = None if flags.latency is None else flags.latency.seconds
    proposals = tuple(propose(seen, current, bound))
    verified = None
    if flags.verify is not None and proposals:
        data = ModelData(
            sources=Sources(
                words=flags.input_data or (RANDOM,), shapes=flags.shape, generated=Generated(seed=flags.seed)
            ),
            batch=flags.batch,
        )
        verified = await verify(flags.verify, model, config, proposals[0].settings, arrivals, data, flags.server_flag)
    return LiveFindings(model, seen, current, proposals, verified)


def _lines(found: Sequence[LiveFindings], flags: AnalyzeFlags) -> list[str]:
    lines: list[str] = []
    for each in found:
        lines.append(_state(each))
        proposed = as_lines(each.model, each.proposals)
        lines += proposed or [f"{each.model}: nothing is proposed: {why_not(each, flags)}"]
        if each.verified is not None:
            lines.append(f"{each.model}: {each.proposals[0].text}: {each.verified}")
    return lines


def _state(found: LiveFindings) -> str:
    seen, current = found.seen, found.current
    p99 = "unknown" if seen.p99 is None else f"{1e3 * seen.p99.value:.3g} ms ({seen.p99.source})"
    return (
        f"{found.model}: {seen.rate:.4g} requests/s, batches of {seen.mean_batch:.2g}, {current.instances} instances, "
        f"in the queue {1e3 * seen.mean_queue:.3g} of {1e3 * seen.mean_latency:.3g} ms, p99 {p99}"
    )


def why_not(found: LiveFindings, flags: AnalyzeFlags) -> str:
    """Why nothing is proposed, in words."""
    if not found.seen.requests:
        return "it had no requests"
    if found.seen.times is None:
        return "its statistics tell of no batches"
    if found.seen.p99 is None:
        return "its latency is unknown: no histogram, summary or trace tells of it"
    if flags.latency is not None and found.seen.p99.value <= flags.latency.seconds:
        return f"it keeps {flags.latency}, and would not with fewer instances"
    use = found.seen.processor_use
    full = f", and the machine's processors are in use to {use:.0%}" if use is not None and use > FULL else ""
    return f"by the formula no change makes its latency a tenth less{full}"


def _as_json(found: Sequence[LiveFindings]) -> list[dict[str, Any]]:
    return [_finite(msgspec.to_builtins(each)) for each in found]


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
