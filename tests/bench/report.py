"""The tables that a run ends with, and their place in `docs/benchmarks.md`. Last step of the benchmark.

One form for both: Markdown, its columns padded so that it is read as well in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.contest import Results
from tests.bench.load import Measurement
from tests.bench.machine import Machine
from tests.bench.memory import Memory
from tests.bench.rows import Row

NOT_MEASURED = "-"
FAILED = "failed"
BEGIN = "<!-- results: begin (written by python -m tests.bench --write) -->"
END = "<!-- results: end -->"
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of one server besides its answers."""

    title: str
    version: str
    numpy_version: str
    seconds_to_ready: float  # median over its starts
    starts: int
    idle: Memory
    loaded: Memory | None  # after the last turn; None where the server had ended by then


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a report tells. `servers` is in the order of the columns: ours, then the other."""

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
    parts = [_conditions(run), _figures(run), _servers(run), *run.alone]
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
    header = ["model", "protocol", "concurrency"]
    for facts in run.servers.values():
        header += [f"{facts.title} infer/s", "p50 ms", "p99 ms"]
    compared = len(run.servers) == 2
    if compared:
        header += ["ratio", "range of ratio"]
    lines = []
    for row in run.rows:
        line = [row.model, row.protocol, str(row.concurrency)]
        for name in run.servers:
            line += _cells(run, row, name)
        if compared:
            line += _ratio_cells(run, row)
        lines.append(line)
    return table(header, lines, text_columns=2)


def _cells(run: Run, row: Row, server: str) -> list[str]:
    typical = run.results.typical(row, server)
    failed = run.results.failures(row, server)
    if typical is None:
        return [FAILED if failed else NOT_MEASURED, NOT_MEASURED, NOT_MEASURED]
    mark = "*" if failed else ""
    return [f"{typical.throughput:,.0f}{mark}", milliseconds(typical.p50), milliseconds(typical.p99)]


def _ratio_cells(run: Run, row: Row) -> list[str]:
    ours, theirs = run.servers
    ratio = run.results.ratio(row, ours, theirs)
    extremes = run.results.ratio_range(row, ours, theirs)
    return [
        NOT_MEASURED if ratio is None else f"{ratio:.2f}",
        NOT_MEASURED if extremes is None else f"{extremes[0]:.2f} to {extremes[1]:.2f}",
    ]


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


def table(header: Sequence[str], lines: Sequence[Sequence[str]], *, text_columns: int) -> str:
    """A Markdown table; columns after the first `text_columns` are aligned right. A bar in a cell is escaped."""
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in [header, *lines]]
    widths = [max(len(line[column]) for line in escaped) for column in range(len(header))]
    rules = ["-" * width if column < text_columns else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    drawn = []
    for line in [escaped[0], rules, *escaped[1:]]:
        cells = [
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        drawn.append("| " + " | ".join(cells) + " |")
    return "\n".join(drawn)


def replace_results(page: str, report: str, begin: str = BEGIN, end: str = END) -> str:
    """`page` with `report` between the two markers. Raises ValueError where they are not there once each, in order."""
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page should hold {begin!r} once and {end!r} once after it")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{report}\n\n{end}{after}"
