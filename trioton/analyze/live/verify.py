"""Verification of a proposal: the recorded arrivals, replayed on a spare server with both configurations, in turns."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from repository.json_form import from_json_form, to_json_form
from repository.model_config import ModelConfig
from trioton.analyze.bench.http_client import HttpClient
from trioton.analyze.bench.server import RunningServer, running_server, server_words
from trioton.analyze.space.facts import Facts
from trioton.analyze.space.model_space import model_space
from trioton.flags.fields import UsageError
from trioton.perf.arrivals import Listed, recorded
from trioton.perf.data.model_data import ModelData
from trioton.perf.load import Open
from trioton.perf.measurement import Ends
from trioton.perf.session import open_session
from trioton.perf.target import Target, Wire

_START_SECONDS = 300.0
_WARM_UP_SECONDS = 1.0
_LEAST_ARRIVALS = 20
# As it is, as proposed, as proposed, as it is: what drifts evenly concerns both alike.
_TURNS = ("before", "after", "after", "before")


@dataclass(frozen=True, slots=True)
class Verified:
    """The p99 of each turn, in seconds, and how many requests failed."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    failed: int

    def __str__(self) -> str:
        before, after = (" and ".join(f"{1e3 * each:.3g}" for each in values) for values in (self.before, self.after))
        failed = f"; {self.failed} requests failed" if self.failed else ""
        return f"replayed: p99 {before} -> {after} ms in turns{failed}"


async def verify(
    repository: Path,
    model: str,
    config: bytes,
    settings: dict[str, str],
    arrivals: Sequence[float],
    data: ModelData,
    flags: Sequence[str],
) -> Verified:
    """`config` is the configuration that serves, as JSON; `settings` are those of the proposal.

    Raises:
        UsageError: too few arrivals were recorded.
        ServerFailed, CallFailed: the spare server or the model do not start.
        DataError, TargetError: the load cannot be offered.
    """
    gaps = replayed(arrivals)
    before = from_json_form(config)
    after = model_space(before, Facts(cores=1024, bound=1.0)).apply(settings, before)
    found: dict[str, list[float]] = {"before": [], "after": []}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        words = server_words([repository], model, flags)
        async with running_server(words, log, seconds=_START_SECONDS) as server:
            for turn in _TURNS:
                p99, wrong = await _replay(server, model, before if turn == "before" else after, gaps, data)
                found[turn].append(p99)
                failed += wrong
    return Verified(tuple(found["before"]), tuple(found["after"]), failed)


def replayed(arrivals: Sequence[float]) -> Listed:
    """Raises UsageError."""
    if len(arrivals) < _LEAST_ARRIVALS:
        raise UsageError(f"--verify: {len(arrivals)} arrivals were recorded, at least {_LEAST_ARRIVALS} are needed")
    return recorded(arrivals)


async def _replay(
    server: RunningServer, model: str, config: ModelConfig, gaps: Listed, data: ModelData
) -> tuple[float, int]:
    client = HttpClient(server.addresses["http"])
    await client.load(model, json.dumps(to_json_form(config)))
    target = Target(wire=Wire.GRPC, model=model, address=server.addresses["grpc"], metrics_url="none")
    seconds = sum(gaps.seconds)
    ends = Ends(
        precision=0.0,
        percent=99.0,
        warmup_seconds=_WARM_UP_SECONDS,
        least_seconds=seconds,
        most_seconds=seconds,
    )
    with trio.fail_after(seconds + _START_SECONDS):
        async with open_session(target, data) as session:
            measured = await session.measure(Open(0.0, gaps), ends)
    return measured.percentile(99.0), measured.figures.failed
