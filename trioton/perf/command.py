"""`trioton perf`: measures a model under load, on a live server, on one started for it, or in this process.

Flow: words → `PerfFlags` → target and data → session → loads (given, a sweep, a search) → table, JSON, CSV, page
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from protocol.errors import ServerError
from trioton.flags.fields import Flag, UsageError, read_environment, read_words, rows
from trioton.log.server_log import logging_to
from trioton.perf.arrivals import Arrivals, Listed, Poisson, recorded
from trioton.perf.bounds import Bound
from trioton.perf.caller import DataError, TargetError
from trioton.perf.data.generated import Generated
from trioton.perf.data.mixture import Mixture
from trioton.perf.data.model_data import ModelData
from trioton.perf.data.payloads import Form
from trioton.perf.data.prompts import Prompts
from trioton.perf.data.regions import SystemMemory
from trioton.perf.data.sequences import Sequences
from trioton.perf.data.sources import RANDOM, Sources, arrival_times, load_dataset
from trioton.perf.find_rate import find_rate
from trioton.perf.flags import PerfFlags
from trioton.perf.html import page
from trioton.perf.load import Closed, Load, Open
from trioton.perf.measurement import Ends, Measurement
from trioton.perf.output import Report, to_csv, to_json
from trioton.perf.session import Session, open_session
from trioton.perf.started import models_here, started_server
from trioton.perf.sweep import knee, measure_all, sweep_to_knee
from trioton.perf.table import ProgressLine, details, table
from trioton.perf.target import Target, Wire
from trioton.settings import Settings
from trioton.version import version_text

# Exit codes.
CANNOT_MEASURE = 1
NOTHING_SUCCEEDED = 2
REQUIREMENT_FAILED = 3
GENERATOR_LIMITED = 4

_FORMS = {Wire.GENERATE: Form.GENERATE, Wire.OPENAI: Form.OPENAI}
_DEFAULT_ADDRESSES = {Wire.GRPC: "localhost:8001", Wire.STREAM: "localhost:8001"}
_HTTP_ADDRESS = "localhost:8000"


@dataclass(frozen=True, slots=True)
class Job:
    """What the words say. `repository` is that of the server to be started; None for a live one at `address`."""

    flags: PerfFlags
    wire: Wire
    address: str
    repository: Path | None
    words: Sequence[str]


def perf_table() -> Sequence[Flag]:
    """The flags of the command."""
    return rows(PerfFlags)


def run_perf(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Measure; answers the exit code, see `docs/perf.md`.

    Raises:
        UsageError: see `trioton.flags`; flags that contradict each other.
    """
    job = perf_job(words, environment)
    try:
        report = trio.run(_measure, job)
    except (TargetError, DataError, ServerError, OSError) as error:
        print(f"trioton perf: {error}", file=sys.stderr)
        return CANNOT_MEASURE
    try:
        _write(job.flags, report)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"trioton perf: {error}", file=sys.stderr)
        return CANNOT_MEASURE
    return exit_code(report)


def perf_job(words: Sequence[str], environment: Mapping[str, str]) -> Job:
    """Raises UsageError."""
    places, given = read_words(perf_table(), words)
    flags = PerfFlags(**{**read_environment(perf_table(), environment), **given})
    if not flags.model:
        raise UsageError("--model is required: the name of the model that is measured")
    if len(places) > 1:
        raise UsageError(f"trioton perf takes one address or repository, got {len(places)}: {' '.join(places)}")
    place = places[0] if places else ""
    repository = Path(place) if place and Path(place).is_dir() else None
    wire = Wire(flags.protocol or Wire.HTTP)
    if flags.in_process:
        wire = Wire.IN_PROCESS
    _check(flags, repository)
    address = place.removeprefix("http://").removeprefix("https://").rstrip("/")
    if place and repository is None and (":" not in address or "/" in address):
        raise UsageError(f"'{place}' is neither the folder of a repository nor the <host>:<port> of a server")
    address = address or _DEFAULT_ADDRESSES.get(wire, _HTTP_ADDRESS)
    return Job(flags, wire, address, repository, tuple(words))


def _check(flags: PerfFlags, repository: Path | None) -> None:
    if flags.in_process and (repository is None or flags.protocol or flags.senders > 1):
        raise UsageError("--in-process takes a repository, and no --protocol or --senders")
    if flags.server_flag and repository is None:
        raise UsageError("--server-flag is for the server of a repository that is given")
    if flags.find_rate != (flags.latency is not None):
        raise UsageError("--find-rate needs a bound, --latency=p99:20ms, and that is of no use without")
    if sum((flags.find_rate, flags.concurrency is not None, flags.rate is not None)) > 1:
        raise UsageError("give one of --concurrency, --rate and --find-rate")
    if flags.requests is not None and flags.find_rate:
        raise UsageError("--requests is for loads that are given, and not for --find-rate")
    for name, file in (("csv", flags.csv), ("html", flags.html)):  # before the measurement, which would be lost
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"--{name}: expected a file in a folder that is there, got '{file}'")


async def _measure(job: Job) -> Report:
    flags, line = job.flags, ProgressLine()
    async with _opened(job) as target:
        data = model_data(flags, job.wire)
        async with open_session(target, data, senders=flags.senders, goodput=flags.goodput) as session:
            try:
                report = await _run(job, session, data, line)
            finally:
                line.clear()
    return report


@asynccontextmanager
async def _opened(job: Job) -> AsyncIterator[Target]:
    """The target, whose server is there while the block lasts."""
    flags = job.flags
    make = partial(
        Target,
        wire=job.wire,
        model=flags.model,
        version=flags.version,
        path=flags.path,
        headers=flags.header,
        tls=flags.tls,
        ca_file=flags.ca_file,
        connections=flags.connections,
        timeout_seconds=flags.request_timeout_secs,
    )
    if job.repository is None:
        yield make(address=job.address, metrics_url=flags.metrics_url)
    elif job.wire is Wire.IN_PROCESS:
        settings = Settings.from_flags([f"--model-repository={job.repository}", "--log-info=false"])
        with logging_to(settings):
            async with models_here(job.repository, flags.server_flag) as models:
                yield make(models=models)
    else:
        async with started_server(job.repository, flags.server_flag) as (http, grpc, metrics):
            address = grpc if job.wire in _DEFAULT_ADDRESSES else http
            yield make(address=address, metrics_url=flags.metrics_url or metrics)


def model_data(flags: PerfFlags, wire: Wire) -> ModelData:
    """What is sent."""
    return ModelData(
        sources=Sources(
            words=flags.input_data or (RANDOM,),
            shapes=flags.shape,
            generated=Generated(seed=flags.seed, string_length=flags.string_length),
            prompts=Prompts(seed=flags.seed, words=flags.prompt_words, max_tokens=flags.max_tokens),
        ),
        form=_FORMS.get(wire, Form.TENSORS),
        batch=flags.batch,
        parameters=dict(flags.parameter),
        outputs=flags.output,
        sequences=Sequences(active=flags.sequences, length=flags.sequence_length, seed=flags.seed),
        is_sequential=bool(flags.sequences or flags.sequence_length),
        mixture=Mixture(
            cancel_share=flags.cancel_share,
            cancel_after=flags.cancel_after,
            priorities=flags.priorities,
            timeout_microseconds=flags.timeout_microseconds,
            seed=flags.seed,
        ),
        memory=SystemMemory(output_bytes=flags.output_shared_memory_bytes) if flags.shared_memory else None,
    )


async def _run(job: Job, session: Session, data: ModelData, line: ProgressLine) -> Report:
    flags = job.flags
    ends = Ends(
        precision=flags.precision,
        warmup_seconds=flags.warmup_secs,
        least_seconds=min(2.0, flags.secs),
        most_seconds=flags.secs,
        requests=flags.requests,
    )
    marked: Measurement | None = None
    mark, is_limited = "", False
    if flags.find_rate and flags.latency is not None:
        arrivals = await _arrivals(flags, session, data)
        found = await find_rate(
            session,
            flags.latency,
            ends,
            arrivals=arrivals,
            seed=flags.seed,
            seconds=flags.total_secs,
            progress=line.show,
        )
        measurements, marked, is_limited = found.measurements, found.best, found.is_limited
        mark = f"greatest rate that keeps {flags.latency}" + ("" if found.is_exact else ", as far as was tried")
    elif loads := await _loads(flags, session, data):
        measurements = await measure_all(session, loads, ends, line.show)
    else:
        measurements = await sweep_to_knee(session, ends, flags.total_secs, line.show)
        marked, mark = knee(measurements), "knee"
    candidates = measurements if not flags.find_rate else [each for each in (marked,) if each is not None]
    failed = failed_requirements(candidates, flags.require or ())
    return Report(
        facts=_facts(job, session),
        measurements=measurements,
        marked=marked,
        mark=mark,
        failed_requirements=failed,
        is_generator_limited=is_limited or (not flags.find_rate and any(each.limits for each in measurements)),
    )


async def _loads(flags: PerfFlags, session: Session, data: ModelData) -> list[Load]:
    if flags.concurrency is not None:
        return [Closed(level) for level in flags.concurrency]
    arrivals = await _arrivals(flags, session, data)
    if flags.rate is not None:
        return [Open(rate, arrivals, flags.seed) for rate in flags.rate]
    return [Open(0, arrivals, flags.seed)] if isinstance(arrivals, Listed) else []


async def _arrivals(flags: PerfFlags, session: Session, data: ModelData) -> Arrivals:
    """Raises DataError: the data has no times."""
    if not isinstance(flags.arrivals, str):
        return flags.arrivals
    _, dataset = await trio.to_thread.run_sync(load_dataset, data.sources, session.description, data.form)
    try:
        return recorded(arrival_times(dataset))
    except ValueError as error:
        raise DataError(f"--arrivals=recorded: {error}") from None


def failed_requirements(measurements: Sequence[Measurement], required: Sequence[Bound]) -> list[str]:
    """Those that are not kept by the load that keeps the most of them."""
    if not required:
        return []
    missed = [[str(bound) for bound in required if not each.keeps(bound)] for each in measurements]
    return min(missed, key=len, default=[str(bound) for bound in required])


def exit_code(report: Report) -> int:
    """0 where all is well."""
    if not any(each.figures.succeeded for each in report.measurements):
        return NOTHING_SUCCEEDED
    if report.is_generator_limited:
        return GENERATOR_LIMITED
    if report.failed_requirements or (report.mark.startswith("greatest") and report.marked is None):
        return REQUIREMENT_FAILED
    return 0


def _facts(job: Job, session: Session) -> dict[str, str]:
    description = session.description
    where = "in process" if job.wire is Wire.IN_PROCESS else session.target.address
    facts = {
        "model": f"{description.name} {description.version}".strip(),
        "target": f"{job.wire} {where}".strip(),
        "command": shlex.join(["trioton", "perf", *_without_secrets(job.words)]),
        "trioton": version_text().splitlines()[0],
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "senders": str(job.flags.senders),
        "seed": str(job.flags.seed),
    }
    if job.repository is not None:
        facts["repository"] = str(job.repository)
    if not isinstance(job.flags.arrivals, Poisson):
        facts["arrivals"] = str(job.flags.arrivals)[:200]
    return facts


def _without_secrets(words: Sequence[str]) -> list[str]:
    shown: list[str] = []
    for word in words:
        hidden = shown and shown[-1] == "--header"
        shown.append("…" if hidden else "--header=…" if word.startswith("--header=") else word)
    return shown


def _write(flags: PerfFlags, report: Report) -> None:
    """Raises OSError."""
    if flags.csv is not None:
        flags.csv.write_text(to_csv(report.measurements))
    if flags.html is not None:
        flags.html.write_text(page(report), encoding="utf-8")
    if flags.json:
        print(json.dumps(to_json(report), allow_nan=False))
        return
    print(table(report.measurements, marked=report.marked))
    if report.marked is not None:
        print(f"< {report.mark}")
    elif report.mark.startswith("greatest"):
        print("no rate keeps the bound")
    shown = report.marked or (report.measurements[-1] if report.measurements else None)
    for each in report.measurements:
        text = (
            details(each)
            if each is shown
            else "\n".join(f"the generator was the limit: {limit}" for limit in each.limits)
        )
        if text:
            print(f"\n{each.load}:\n{text}")
    if report.failed_requirements:
        print(f"\nnot kept: {', '.join(report.failed_requirements)}")
