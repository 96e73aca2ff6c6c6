"""Bench: loads a candidate into the server that is measured, offers it a rate, and tells what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import trio

from repository.json_form import to_json_form
from repository.model_config import ModelConfig
from trioton.analyze.bench.answers import difference
from trioton.analyze.bench.http_client import CallFailed, HttpClient
from trioton.analyze.bench.process_tree import Usage, usage
from trioton.analyze.bench.server import RunningServer
from trioton.analyze.search.aim import Aim
from trioton.analyze.search.candidates import Outcome, Stages, Trial
from trioton.convert.tensors import Arrays
from trioton.perf.arrivals import Arrivals, Poisson
from trioton.perf.bounds import LatencyBound
from trioton.perf.caller import Payload, TargetError
from trioton.perf.data.model_data import ModelData
from trioton.perf.load import Open
from trioton.perf.measurement import Ends, Measurement, bounded
from trioton.perf.session import open_session
from trioton.perf.target import Target, Wire

_WARM_UP_SECONDS = 0.4
_PERCENTS = (50.0, 90.0, 95.0, 99.0)
# Requests whose answers are compared, sent alone and all at once.
_COMPARED = 12
_IN_FLIGHT = 64

ConfigOf: TypeAlias = Callable[[str], ModelConfig]


@dataclass(slots=True)
class Bench:
    """`config_of` is the configuration of a candidate. `wire` is that of clients."""

    server: RunningServer
    model: str
    config_of: ConfigOf
    aim: Aim
    data: ModelData
    requests: list[Payload]
    wire: Wire = Wire.GRPC
    arrivals: Arrivals = Poisson()  # noqa: RUF009 (frozen)
    seed: int = 0
    expected: list[Arrays] = field(default_factory=list)
    note: str = ""
    _loaded: str | None = None
    _failures: dict[str, str] = field(default_factory=dict)

    @property
    def client(self) -> HttpClient:
        return HttpClient(self.server.addresses["http"])

    async def learn_answers(self) -> None:
        """The default's own, to which all others are compared. A model whose answers vary by themselves is compared by
        nothing, and `note` says so."""
        try:
            self.expected = await self._answers()
        except CallFailed as error:
            self.note = f"answers are not compared: {error}"
            return
        if reason := difference(self.expected, await self._answers()):
            self.note = f"answers are not compared: the default itself answers otherwise a second time ({reason})"
            self.expected = []

    async def measure(self, trial: Trial) -> Outcome:
        """The outcome of a trial, whatever happens: what cannot be loaded or measured has failed."""
        began = time.monotonic()
        try:
            await self._load(trial.candidate)
            outcome = await self._offer(trial)
        except (CallFailed, TargetError) as error:
            self._failures[trial.candidate] = str(error)
            outcome = Outcome(failure=str(error))
        return _with_cost(outcome, time.monotonic() - began)

    def restarted(self, server: RunningServer) -> None:
        """Another server is measured from now on."""
        self.server, self._loaded = server, None

    async def _load(self, candidate: str) -> None:
        if self._loaded == candidate:
            return
        if candidate in self._failures:
            raise CallFailed(self._failures[candidate])
        self._loaded = None
        await self.client.load(self.model, json.dumps(to_json_form(self.config_of(candidate))))
        self._loaded = candidate
        if self.expected and (reason := difference(self.expected, await self._answers())):
            raise CallFailed(f"it answers otherwise than the default: {reason}")

    async def _answers(self) -> list[Arrays]:
        """To some requests, alone and then all at once, so that they share batches."""
        requests = self.requests[:_COMPARED]
        alone = [await self.client.infer(self.model, each.inputs) for each in requests]
        together: list[Arrays] = [{}] * len(requests)
        failures: list[CallFailed] = []

        async def ask(number: int, payload: Payload) -> None:
            try:
                together[number] = await self.client.infer(self.model, payload.inputs)
            except CallFailed as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for number, payload in enumerate(requests):
                nursery.start_soon(ask, number, payload)
        if failures:
            raise failures[0]
        return [*alone, *together]

    async def _offer(self, trial: Trial) -> Outcome:
        address = self.server.addresses["http" if self.wire is Wire.HTTP else "grpc"]
        metrics = f"http://{self.server.addresses['metrics']}/metrics"
        target = Target(wire=self.wire, model=self.model, address=address, metrics_url=metrics)
        # An overload is seen soon; what waits at its end is waited for, so there is not to be too much of it.
        allowed = 0.0 if self.aim.bound == float("inf") else 8 * trial.rate * self.aim.bound
        load = Open(trial.rate, self.arrivals, self.seed, most_in_flight=int(_IN_FLIGHT + max(allowed, trial.rate / 4)))
        ends = Ends(
            precision=0.0,
            percent=self.aim.percent,
            warmup_seconds=_WARM_UP_SECONDS,
            least_seconds=trial.seconds,
            most_seconds=trial.seconds,
        )
        async with open_session(target, self.data) as session:
            before = await self._usage()
            measured = await session.measure(load, ends)
            after = await self._usage()
        return outcome_of(measured, self.aim, before, after)

    async def _usage(self) -> Usage:
        return await trio.to_thread.run_sync(usage, self.server.pid)


def outcome_of(measured: Measurement, aim: Aim, before: Usage, after: Usage) -> Outcome:
    """What a measurement means for a search."""
    figures = measured.figures
    bound = LatencyBound(aim.percent, 1.0)
    found = bounded(measured.slices, bound)
    server = measured.server
    stages = None
    if server is not None:
        stages = Stages(server.queue, server.compute_input, server.compute_infer, server.compute_output)
    served = max(1, figures.succeeded)
    return Outcome(
        achieved=figures.rate,
        latency=found.value if figures.succeeded else None,
        margin=found.margin if found.margin != float("inf") else None,
        error_share=measured.error_share,
        memory=max(before.memory, after.memory),
        processor=max(0.0, after.processor - before.processor) / served,
        mean_batch=0.0 if server is None else server.mean_batch,
        percentiles={f"p{percent:g}": measured.percentile(percent) for percent in _PERCENTS},
        stages=stages,
        limits=measured.limits,
    )


def _with_cost(outcome: Outcome, cost: float) -> Outcome:
    return msgspec.structs.replace(outcome, cost=round(cost, 3))
