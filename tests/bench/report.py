"""What a run ends with, and its place in `docs/benchmarks.md`. Last step of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.contest import Results
from tests.bench.machine import Machine
from tests.bench.measurement import Measurement
from tests.bench.peers import THEIRS
from tests.bench.rows import Row
from tests.bench.table import NOT_MEASURED, table
from tests.bench.verdicts import ServerFacts, promise_table, ratio_table

FAILED = "failed"
RATIOS = "Ours over NVIDIA's, in throughput and in p50, with the model in a worker and in the server's process:"
PROMISES = "What else is held to:"
FIGURES = "The figures behind them:"
BEGIN = "<!-- results: begin (written by python -m tests.bench --write) -->"
END = "<!-- results: end -->"
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a report tells. `servers` is in the order of the lines."""

    machine: Machine
    rows: Sequence[Row]
    servers: Mapping[str, ServerFacts]
    results: Results
    rounds: int
    window_ms: int
    analyzer_version: str
    minutes: float
    incidents: Sequence[str]
    alone: Sequence[str] = ()  # what was measured of our server alone, as Markdown


def render(run: Run) -> str:
    """The whole report, without a heading."""
    parts = [_conditions(run)]
    if len(run.servers) > 1 and THEIRS in run.servers:
        parts += [RATIOS, ratio_table(run.results, run.rows), PROMISES, promise_table(run.results, run.servers)]
    parts += [FIGURES, _figures(run), _servers(run), *run.alone]
    if notes := [*_failure_notes(run), *run.incidents]:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts)


def _conditions(run: Run) -> str:
    machine = run.machine
    versions = [f"{facts.title} {facts.version} (numpy {facts.numpy_version})" for facts in run.servers.values()]
    return (
        f"{machine.date}, {machine.processor}, {_count(machine.cores, 'core')}, {machine.kernel}: "
        f"{', '.join(versions)}; Python {machine.python}; perf_analyzer {run.analyzer_version}. "
        f"Medians of {_count(run.rounds, 'round')}, each of 3 windows of {run.window_ms} ms. "
        f"Load average before the run {machine.load_average:.2f}; the run took {run.minutes:.1f} minutes."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _figures(run: Run) -> str:
    header = ["row", "server", "infer/s", "p50 ms", "p99 ms", "processor µs"]
    lines = [
        [row.label, facts.title, *_cells(run, row, name)] for row in run.rows for name, facts in run.servers.items()
    ]
    return table(header, lines, text_columns=2)


def _cells(run: Run, row: Row, server: str) -> list[str]:
    typical = run.results.typical(row, server)
    failed = run.results.failures(row, server)
    if typical is None:
        return [FAILED if failed else NOT_MEASURED, *[NOT_MEASURED] * 3]
    throughput = f"{typical.throughput:,.0f}{'*' if failed else ''}"
    processor = NOT_MEASURED if typical.processor is None else f"{typical.processor:,.0f}"
    return [throughput, milliseconds(typical.p50), milliseconds(typical.p99), processor]


def _servers(run: Run) -> str:
    header = ["server", "time to ready s", "processes", "idle RSS MiB", "idle PSS MiB", "RSS after load MiB"]
    lines = [
        [
            facts.title,
            f"{facts.seconds_to_ready:.2f}",
            str(facts.idle.processes),
            mebibytes(facts.idle.resident),
            mebibytes(facts.idle.proportional),
            NOT_MEASURED if facts.loaded is None else mebibytes(facts.loaded.resident),
        ]
        for facts in run.servers.values()
    ]
    return table(header, lines, text_columns=1)


def _failure_notes(run: Run) -> list[str]:
    notes = []
    for row in run.rows:
        for name, facts in run.servers.items():
            outcomes = run.results.outcomes.get((row, name), {})
            if failed := run.results.failures(row, name):
                reasons = "; ".join(dict.fromkeys(failed))
                notes.append(
                    f"`*` {row.label}, {facts.title}: {len(failed)} of {len(outcomes)} turns failed: {reasons}"
                )
    return notes


def describe(outcome: Measurement) -> str:
    """One measurement in a line of progress."""
    figures = f"p50 {milliseconds(outcome.p50)} ms, p99 {milliseconds(outcome.p99)} ms"
    return f"{outcome.throughput:,.0f} infer/s, {figures}"


def milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f}"


def mebibytes(count: int) -> str:
    return f"{count / MEBIBYTE:.0f}"


def replace_results(page: str, report: str, begin: str = BEGIN, end: str = END) -> str:
    """`page` with `report` between the two markers. Raises ValueError where they are not there once each, in order."""
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page should hold {begin!r} once and {end!r} once after it")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{report}\n\n{end}{after}"
