"""The report of an analysis, as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from trioton.analyze.results.findings import DEFAULT_NAME, CandidateFindings, Findings
from trioton.report import (
    Axis,
    Bar,
    Block,
    Cell,
    Code,
    Diff,
    Dot,
    Facts,
    Goal,
    Limit,
    Line,
    LinePlot,
    Page,
    Sample,
    ScatterPlot,
    Section,
    StackedBars,
    Table,
    Text,
)
from trioton.report.numbers import number

_MEGABYTE = 1e6
_MOST_LINES = 6
_STAGES = ("queue", "input", "infer", "output")


def as_page(findings: Findings, bound_ms: float | None) -> Page:
    return Page(
        f"Analysis of model {findings.model}",
        [
            _verdict(findings),
            Section("Candidates", _candidates(findings, bound_ms)),
            Section("Configuration", _configuration(findings)),
            Section("Final turns", _finals(findings)),
            Section("What was not tried", _left_out(findings)),
            Section("How to repeat it", _environment(findings)),
        ],
        lead=f"{findings.objective.capitalize()} under {findings.bound}. All were offered rates of one grid.",
    )


def _verdict(findings: Findings) -> Section:
    proposed, default = findings.candidate(findings.proposed), findings.candidate(DEFAULT_NAME)
    blocks: list[Block] = [Text(f"Proposed: {findings.proposed} - {findings.why}.", is_warning=not findings.is_proven)]
    if findings.equals:
        blocks.append(Text(f"Not told apart from it: {'; '.join(findings.equals)}."))
    rows: list[list[Cell]] = []
    for name, unit, one, other in (
        ("rate", "1/s", default.rate, proposed.rate),
        ("memory", "MB", default.memory_bytes / _MEGABYTE, proposed.memory_bytes / _MEGABYTE),
        ("processor time of a request", "us", default.processor_us, proposed.processor_us),
    ):
        change = None if not one or other is None else f"{100 * (other / one - 1):+.0f} %"
        rows.append([f"{name} ({unit})", one, other, change])
    blocks.append(Table("The default and what is proposed", ["figure", "default", "proposed", "change"], rows))
    blocks += [Text(note, is_warning=True) for note in findings.notes]
    return Section("Result", blocks)


def _candidates(findings: Findings, bound_ms: float | None) -> list[Block]:
    columns = ["candidate", "rate (1/s)", "exactness", "predicted (1/s)", "memory (MB)", "CPU (us)", "remark"]
    rows: list[list[Cell]] = [
        [
            each.name,
            each.rate,
            each.bound_note,
            each.predicted_rate,
            each.memory_bytes / _MEGABYTE if each.memory_bytes else None,
            each.processor_us or None,
            each.failure or ("finalist" if each.is_finalist else ""),
        ]
        for each in findings.candidates
    ]
    marked = frozenset(i for i, each in enumerate(findings.candidates) if each.name == findings.proposed)
    good = [each for each in findings.candidates if each.rate is not None]
    dots = [
        Dot(each.name, each.memory_bytes / _MEGABYTE, each.rate or 0.0, each.name == findings.proposed) for each in good
    ]
    drawn = _drawn(findings)
    limits = [] if bound_ms is None else [Limit(f"bound {number(bound_ms)} ms", bound_ms)]
    lines = [Line(each.name, _samples(each)) for each in drawn]
    return [
        Table("All candidates that were measured", columns, rows, marked),
        ScatterPlot(
            "Rate and memory",
            Axis("memory", "MB"),
            Axis("greatest rate that keeps the bound", "1/s", from_zero=True),
            dots,
            goals=(Goal.LOWER, Goal.HIGHER),
            description="Nothing that was measured has both less memory and a greater rate than what is on the front.",
        ),
        LinePlot(
            "Latency by offered rate",
            Axis("offered rate", "1/s"),
            Axis(f"latency, {findings.bound}", "ms", is_log=True),
            lines,
            description="Open loop, from the planned moment of each request; bands are 95 % confidence intervals.",
            limits=limits,
        ),
        StackedBars(
            "Where requests spend their time in the server",
            Axis("time", "ms"),
            _STAGES,
            [Bar(each.name, _stages(each)) for each in drawn if _stages(each)],
            description="Means at the highest rate that keeps the bound.",
        ),
    ]


def _drawn(findings: Findings) -> list[CandidateFindings]:
    """The default, what is proposed, and the best others."""
    first = [findings.candidate(DEFAULT_NAME), findings.candidate(findings.proposed)]
    others = [each for each in findings.candidates if each.measured]
    unique = {each.name: each for each in [*first, *others]}
    return list(unique.values())[:_MOST_LINES]


def _samples(candidate: CandidateFindings) -> list[Sample]:
    """One for each rate: the mean, with the widest interval."""
    by_rate: dict[float, list[tuple[float, float]]] = {}
    for each in candidate.measured:
        if each.latency_ms is not None:
            by_rate.setdefault(each.rate, []).append((each.latency_ms, each.margin_ms or 0.0))
    made = []
    for rate in sorted(by_rate):
        values = [latency for latency, _ in by_rate[rate]]
        mean = sum(values) / len(values)
        low = min(latency - margin for latency, margin in by_rate[rate])
        high = max(latency + margin for latency, margin in by_rate[rate])
        made.append(Sample(rate, mean, max(low, mean / 10), high))
    return made


def _stages(candidate: CandidateFindings) -> Sequence[float]:
    kept = [each for each in candidate.measured if each.keeps and each.stages_ms]
    if not kept:
        return ()
    best = max(kept, key=lambda each: each.rate)
    return [best.stages_ms.get(name, 0.0) for name in _STAGES]


def _configuration(findings: Findings) -> list[Block]:
    return [
        Diff(findings.config_before, findings.config_after, "config.pbtxt (now)", "config.pbtxt (proposed)"),
        Code(findings.config_after, "Proposed configuration"),
    ]


def _finals(findings: Findings) -> list[Block]:
    if not findings.comparisons:
        return [Text("There were none: one candidate alone was left, or no time.")]
    rows: list[list[Cell]] = [
        [each.candidate, 100 * each.gain, each.chance, each.turns] for each in findings.comparisons
    ]
    columns = ["finalist", "behind the best by (%)", "chance if both were alike", "turns"]
    text = (
        f"The finalists were offered {number(findings.contest_rate)} requests a second in turns, in changing order. "
        "Differences within turns are compared under all changes of their signs; below a chance of 1 in 60 one counts "
        "as better."
    )
    return [Text(text), Table("Paired comparison with the best finalist", columns, rows)]


def _left_out(findings: Findings) -> list[Block]:
    blocks: list[Block] = [
        Text(f"{findings.sorted_out} candidates were sorted out by the queueing formula, from the service times below.")
    ]
    if findings.left_out:
        blocks.append(Facts(findings.left_out))
    rows: list[list[Cell]] = [
        [option or "default", rows_, time]
        for option, times in findings.service_times_ms.items()
        for rows_, time in times.items()
    ]
    if rows:
        blocks.append(Table("Service times, in process", ["threads", "rows", "median (ms)"], rows))
    return blocks


def _environment(findings: Findings) -> list[Block]:
    facts = {
        "seed": str(findings.seed),
        "budget": f"{findings.budget_seconds:.0f} s, spent {findings.spent_seconds:.0f} s",
        "repository": findings.repository,
        **findings.environment,
    }
    return [Code(findings.command, "Command"), Facts(facts)]
