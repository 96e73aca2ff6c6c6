"""An analysis: prepares server, data and space, runs the search, and makes findings of it.

Flow: `Job` → server, answers, service times → `Plan` → `driver` with `Bench` and `Journal` → `Findings` and files
"""

from __future__ import annotations

import hashlib
import math
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from protocol.core import TensorMetadata
from repository.json_form import from_json_form, to_json_form
from repository.layout import CONFIG_FILE, ModelDirectory
from repository.model_config import ModelConfig
from trioton.analyze.bench.bench import Bench
from trioton.analyze.bench.http_client import CallFailed, HttpClient
from trioton.analyze.bench.requests import payloads_of
from trioton.analyze.bench.server import RunningServer, running_server, server_words
from trioton.analyze.bench.task import Task, measure_service_times
from trioton.analyze.driver import run_search
from trioton.analyze.flags import AnalyzeFlags
from trioton.analyze.journal import Journal, Preparation, open_journal
from trioton.analyze.results.configs import CONFIGS, config_texts, write_configs
from trioton.analyze.results.findings import Findings, candidate_findings, comparisons, name_of, write_json
from trioton.analyze.results.page import as_page
from trioton.analyze.results.texts import as_csv
from trioton.analyze.search.aim import Aim, Objective
from trioton.analyze.search.candidates import Outcome, Trial
from trioton.analyze.search.plan import DEFAULT, Plan
from trioton.analyze.search.service_times import ServiceTimes, service_times
from trioton.analyze.search.verdict import judge
from trioton.analyze.space.axes import AxesSpace
from trioton.analyze.space.backends import THREADS
from trioton.analyze.space.facts import Facts
from trioton.analyze.space.model_space import ModelSpace, model_space
from trioton.analyze.space.observed_shapes import ObservedRequest, shape_rules_of
from trioton.machine import core_count, memory_size
from trioton.perf.caller import ModelDescription
from trioton.perf.data.generated import Generated
from trioton.perf.data.model_data import ModelData
from trioton.perf.data.sources import RANDOM, ZERO, Sources
from trioton.perf.target import Wire
from trioton.settings import Settings
from trioton.version import version_text

SERVER_LOG, REPORT, RESULT, TABLE = "server.log", "report.html", "result.json", "measurements.csv"
_START_SECONDS = 300.0
_REQUESTS = 32
_SERVICE_TIMES_PART = 0.1
_MOST_THREAD_OPTIONS = 4
# What a trial may take beyond its plan before the whole is ended.
_GRACE_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be analyzed. `command` repeats it."""

    directory: ModelDirectory
    flags: AnalyzeFlags
    folder: Path
    command: str

    @property
    def aim(self) -> Aim:
        bound = self.flags.latency
        percent = 99.0 if bound is None else bound.percent
        seconds = math.inf if bound is None else bound.seconds
        return Aim(Objective(self.flags.objective), seconds, percent, self.flags.rate)

    @property
    def sources(self) -> Sources:
        words = self.flags.input_data or (RANDOM,)
        return Sources(words=words, shapes=self.flags.shape, generated=Generated(seed=self.flags.seed))

    @property
    def data(self) -> ModelData:
        return ModelData(sources=self.sources, batch=self.flags.batch)

    def identity(self) -> dict[str, Any]:
        """What an analysis that goes on must have in common with the one before."""
        file = self.directory.path / CONFIG_FILE
        text = file.read_bytes() if file.is_file() else b""
        flags = self.flags
        return {
            "model": self.directory.name,
            "repository": str(self.directory.path.parent),
            "configuration": hashlib.sha256(text).hexdigest(),
            "objective": flags.objective,
            "latency": str(flags.latency),
            "rate": flags.rate,
            "minutes": flags.minutes,
            "search": flags.search,
            "input-data": list(self.sources.words),
            "shape": [str(each) for each in flags.shape],
            "batch": flags.batch,
            "largest-request": flags.largest_request,
            "protocol": flags.protocol,
            "seed": flags.seed,
            "server-flag": list(flags.server_flag),
        }


class CannotAnalyze(Exception):
    """The analysis cannot be made; the text says why."""


@dataclass(slots=True)
class _Prepared:
    config: ModelConfig
    space: ModelSpace
    axes: AxesSpace
    bench: Bench
    preparation: Preparation


async def analyze(job: Job, say: Say) -> Findings:
    """Make it, and write its files.

    Raises:
        CannotAnalyze: the model does not load.
        UsageError: the folder has another analysis.
        DataError: there is no data for what the model wants.
        ServerFailed: the server does not start.
    """
    began = time.monotonic()
    journal = open_journal(job.folder, job.identity())
    words = server_words([job.directory.path.parent], job.directory.name, job.flags.server_flag)
    async with AsyncExitStack() as stack:

        async def start() -> RunningServer:
            log = job.folder / SERVER_LOG
            return await stack.enter_async_context(running_server(words, log, seconds=_START_SECONDS))

        server = await start()
        prepared = await _prepare(job, journal, server, began, say)
        bench = prepared.bench
        plan = _plan(job, prepared)

        async def measure(trial: Trial) -> Outcome:
            outcome = await bench.measure(trial)
            if bench.server.has_ended:
                outcome = msgspec.structs.replace(outcome, failure=outcome.failure or "it has ended the server")
                bench.restarted(await start())
            return outcome

        def tell(trial: Trial, outcome: Outcome) -> None:
            say(_line(trial, outcome, plan))

        limit = max(0.0, plan.budget - plan.spent) + _GRACE_SECONDS
        with trio.move_on_after(limit):
            replayed = await run_search(plan, measure, journal, tell)
            if replayed:
                say(f"{replayed} measurements were there already")
    findings = _findings(job, prepared, plan)
    await trio.to_thread.run_sync(_write, job, prepared, plan, findings)
    return findings


def _plan(job: Job, prepared: _Prepared) -> Plan:
    budget, spent = 60 * job.flags.minutes, prepared.preparation.spent
    if job.flags.search == "optuna":
        from trioton.analyze.search.optuna_plan import OptunaPlan

        return OptunaPlan(prepared.axes, job.aim, budget, spent, options=prepared.axes, seed=job.flags.seed)
    return Plan(prepared.axes, job.aim, budget, spent)


async def _prepare(job: Job, journal: Journal, server: RunningServer, began: float, say: Say) -> _Prepared:
    model = job.directory.name
    client = HttpClient(server.addresses["http"])
    config = await _completed(client, model)
    description = await _description(client, model, config)
    requests = await payloads_of(job.data, description, _REQUESTS)
    wire = Wire.STREAM if config.is_decoupled else Wire(job.flags.protocol)
    bench = Bench(server, model, lambda key: config, job.aim, job.data, requests, wire, seed=job.flags.seed)
    await bench.learn_answers()
    preparation = journal.preparation
    if preparation is None:
        preparation = await _measured(job, config, bench, began, say)
        journal.begin(preparation)
    facts = _facts(job, config, preparation.shape_rules)
    space = model_space(config, facts)
    axes = space.axes_space(times_of(preparation), job.aim.percent or 95.0)
    bench.config_of = lambda key: space.apply(axes.settings.get(key, {}), config)
    return _Prepared(config, space, axes, bench, preparation)


async def _completed(client: HttpClient, model: str) -> ModelConfig:
    try:
        return from_json_form(msgspec.json.encode(await client.config(model)))
    except CallFailed as error:
        index, _ = await client.call("POST", "/v2/repository/index")
        reasons = [each.get("reason", "") for each in msgspec.json.decode(index) if each.get("name") == model]
        raise CannotAnalyze(f"model '{model}' does not load: {next(filter(None, reasons), error)}") from None


async def _description(client: HttpClient, model: str, config: ModelConfig) -> ModelDescription:
    metadata = await client.json(f"/v2/models/{model}")
    inputs = msgspec.convert(metadata["inputs"], list[TensorMetadata])
    outputs = msgspec.convert(metadata["outputs"], list[TensorMetadata])
    return ModelDescription(model, "", inputs, outputs, to_json_form(config))


async def _measured(job: Job, config: ModelConfig, bench: Bench, began: float, say: Say) -> Preparation:
    """Service times, and what the data tells of shapes."""
    say("measuring service times in process")
    observed = [
        ObservedRequest(
            {each.name: tuple(each.shape)[1:] for each in payload.inputs},
            {name: array.shape[1:] for name, array in answer.items()},
        )
        for payload, answer in zip(bench.requests, bench.expected, strict=False)
    ]
    rules = shape_rules_of(config, observed) if config.is_batching else ""
    space = model_space(config, _facts(job, config, rules))
    threads = next((each for each in space.settings if each.axis.name == THREADS), None)
    configs = {"": config}
    if threads is not None:
        for option in threads.axis.options[1:_MOST_THREAD_OPTIONS]:
            configs[option] = threads.apply(config, option)
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128) if size <= max(1, config.max_batch_size)]
    budget = _SERVICE_TIMES_PART * 60 * job.flags.minutes
    task = Task(
        repositories=(str(job.directory.path.parent),),
        model=job.directory.name,
        flags=job.flags.server_flag,
        configs={key: msgspec.json.encode(to_json_form(each)).decode() for key, each in configs.items()},
        sizes=tuple(sizes),
        sources=job.sources,
        seconds=min(0.3, budget / len(configs) / len(sizes)),
    )
    found = await measure_service_times(task, _START_SECONDS / 5 + budget)
    notes = [f"no service times{f' with threads={key}' if key else ''}: {text}" for key, text in found.failures.items()]
    if threads is not None and "" in found.times:
        found.times[threads.axis.options[0]] = found.times[""]
    return Preparation(
        identity=job.identity(),
        spent=round(time.monotonic() - began, 3),
        times={key: dict(each.seconds) for key, each in found.times.items()},
        variations={key: each.variation for key, each in found.times.items()},
        shape_rules=rules,
        notes=tuple(notes),
    )


def times_of(preparation: Preparation) -> Mapping[str, ServiceTimes]:
    return {
        key: service_times(seconds, min(1.0, preparation.variations.get(key, 0.2)))
        for key, seconds in preparation.times.items()
    }


def _facts(job: Job, config: ModelConfig, rules: str) -> Facts:
    settings = Settings.from_flags([f"--model-repository={job.directory.path.parent}", *job.flags.server_flag])
    is_given = job.sources.words not in ((RANDOM,), (ZERO,))
    allowed = any(each.key == "allow-in-process" and each.value.lower() == "true" for each in settings.backend_config)
    return Facts(
        cores=max(1, math.floor(core_count())),
        bound=job.aim.bound,
        largest_request=job.flags.largest_request or max(job.flags.batch, config.max_batch_size),
        has_cache=bool(settings.cache_config) and is_given,
        allows_in_process=allowed,
        host_policies=tuple(dict.fromkeys(each.policy for each in settings.host_policy)),
        shape_rules=rules,
    )


def _line(trial: Trial, outcome: Outcome, plan: Plan) -> str:
    name = name_of(trial.candidate)
    if outcome.failure:
        return f"{trial.stage}: {name}: {outcome.failure}"
    latency = "-" if outcome.latency is None else f"{1e3 * outcome.latency:.3g} ms"
    left = max(0.0, plan.budget - plan.spent - outcome.cost)
    return f"{trial.stage}: {name} at {trial.rate:.4g}/s: {latency} ({left:.0f} s left)"


def _findings(job: Job, prepared: _Prepared, plan: Plan) -> Findings:
    verdict = judge(plan)
    notes = [*prepared.preparation.notes, *filter(None, [prepared.bench.note])]
    if job.sources.words in ((RANDOM,), (ZERO,)):
        notes.append("the data is made up; give real requests with --input-data")
    limits = [each.outcome.limits for record in plan.records.values() for each in record.measured]
    if limited := [each for each in limits if each]:
        notes.append(
            f"the load generator was the limit in {len(limited)} of {len(limits)} measurements: {limited[0][0]}"
        )
    before, after = _texts(job, prepared, verdict.proposed)
    bound = job.flags.latency
    return Findings(
        model=job.directory.name,
        repository=str(job.directory.path.parent),
        objective=job.flags.objective,
        bound=str(bound) if bound is not None else "no bound",
        fixed_rate=plan.rate if plan.aim.has_fixed_rate else 0.0,
        proposed=name_of(verdict.proposed),
        is_proven=verdict.is_proven,
        why=verdict.why,
        equals=tuple(map(name_of, verdict.equals)),
        comparisons=comparisons(verdict),
        contest_rate=plan.contest_rate,
        candidates=candidate_findings(plan, prepared.axes.settings),
        sorted_out=len(prepared.axes.settings) - len(plan.records),
        left_out=dict(prepared.space.left_out),
        notes=tuple(notes),
        config_before=before,
        config_after=after,
        command=job.command,
        seed=job.flags.seed,
        budget_seconds=plan.budget,
        spent_seconds=plan.spent,
        environment=environment(),
        service_times_ms={
            key: {rows: 1e3 * seconds for rows, seconds in times.items()}
            for key, times in prepared.preparation.times.items()
        },
    )


def _texts(job: Job, prepared: _Prepared, key: str) -> tuple[str, str]:
    settings = prepared.axes.settings.get(key, {})
    if not settings:
        before, _ = config_texts(job.directory, prepared.config, lambda config: config)
        return before, before
    return config_texts(job.directory, prepared.config, lambda config: prepared.space.apply(settings, config))


def _write(job: Job, prepared: _Prepared, plan: Plan, findings: Findings) -> None:
    folder = job.folder
    write_json(findings, folder / RESULT)
    (folder / TABLE).write_text(as_csv(findings), encoding="utf-8")
    bound = job.flags.latency
    page = as_page(findings, None if bound is None else 1e3 * bound.seconds)
    (folder / REPORT).write_text(page.html(), encoding="utf-8")
    keys = [DEFAULT, *(record.candidate.key for record in plan.ranked() if record.candidate.key != DEFAULT)]
    write_configs(folder / CONFIGS, {name_of(key): _texts(job, prepared, key)[1] for key in keys})


def environment() -> dict[str, str]:
    return {
        "trioton": version_text(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": f"{core_count():g}",
        "memory": f"{memory_size() / 2**30:.1f} GiB",
        "measured at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def command_text(words: list[str]) -> str:
    return shlex.join(["trioton", "analyze", *words])


def say(text: str) -> None:
    print(f"trioton analyze: {text}", file=sys.stderr, flush=True)
