"""The report of a conversion as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trioton.convert.choice import Bound, Speed
from trioton.convert.report import MEASURE_NAMES, Outcome, Report, measured, middle_rate
from trioton.report import (
    Axis,
    Block,
    Code,
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
    Table,
    Text,
)


def page_of(report: Report) -> Page:
    blocks: list[Block] = []
    if not report.is_proven:
        blocks.append(Text("UNPROVEN: the data is random. Give real samples with --samples.", is_warning=True))
    if report.not_passed:
        blocks.append(Text(f"Not passed: {', '.join(report.not_passed)}", is_warning=True))
    blocks += [_candidates(report), Section("Gate", list(_gate(report))), *_speed(report)]
    blocks += [Section("How it was done", list(_origin(report)))]
    return Page(f"Conversion of {report.model}", blocks, report.why)


def _candidates(report: Report) -> Table:
    rows = [
        (
            outcome.name,
            outcome.backend,
            outcome.precision.value,
            "passed" if outcome.is_passed else "failed" if outcome.verdict is not None else "not made",
            middle_rate(outcome, report.bound),
            outcome.speed.memory_bytes / 1e6 if outcome.speed is not None else None,
        )
        for outcome in report.outcomes
    ]
    names = ("candidate", "backend", "precision", "gate", "rate (1/s)", "memory (MB)")
    chosen = frozenset(index for index, each in enumerate(report.outcomes) if each.name == report.chosen)
    return Table(f"Candidates; chosen: {report.chosen or 'none'}", names, rows, chosen)


def _gate(report: Report) -> Iterator[Block]:
    yield Facts(
        {
            "reference": report.reference + (f" ({report.reference_reason})" if report.reference_reason else ""),
            "data": report.samples,
            "cases": "; ".join(report.cases),
        }
    )
    rows = [
        (outcome.name, MEASURE_NAMES[check], value, _limit(outcome, check))
        for outcome in report.outcomes
        for check, value in measured(outcome).items()
    ]
    yield Table("The worst of each check", ("candidate", "check", "measured", "limit"), rows)
    failures: list[tuple[str, str]] = []
    for outcome in report.outcomes:
        reasons: Sequence[object] = outcome.verdict.failures if outcome.verdict is not None else ()
        failures += [(outcome.name, str(reason)) for reason in ([outcome.error] if outcome.error else reasons)]
    if failures:
        yield Table("Failures", ("candidate", "failure"), failures)


def _limit(outcome: Outcome, check: str) -> float | None:
    """The one of the precision; a source's own rounding may add to it."""
    limits = {
        "error": outcome.tolerance.error,
        "cosine": outcome.tolerance.cosine,
        "distance": outcome.tolerance.distance,
        "top-1 agreement": outcome.tolerance.top1,
        "equal elements": outcome.tolerance.equal,
    }
    return limits[check]


def _speed(report: Report) -> Iterator[Block]:
    measured_ones = [(outcome, outcome.speed) for outcome in report.outcomes if outcome.speed is not None]
    if not measured_ones:
        return
    limits = [Limit(str(report.bound), report.bound.milliseconds)] if report.bound is not None else []
    percentile = report.bound.percentile if report.bound is not None else "p99"
    curves = LinePlot(
        f"Rate and latency ({percentile})",
        Axis("rate", "1/s", from_zero=True),
        Axis(percentile, "ms", is_log=True),
        [Line(outcome.name, _curve(speed, percentile)) for outcome, speed in measured_ones],
        description="A mark for each number of callers; the band reaches from the better round to the worse one.",
        limits=limits,
    )
    dots = [_dot(outcome, speed, report.bound, report.chosen) for outcome, speed in measured_ones]
    front = ScatterPlot(
        "Rate and memory",
        Axis("memory", "MB"),
        Axis("rate", "1/s", from_zero=True),
        dots,
        goals=(Goal.LOWER, Goal.HIGHER),
        description="Memory is the most that the whole process had.",
    )
    yield Section("Speed", [curves, front])


def _curve(speed: Speed, percentile: str) -> list[Sample]:
    samples = []
    for loads in zip(*speed.rounds, strict=True):
        latencies = [load.latencies_ms[percentile] for load in loads]
        rate = sum(load.rate for load in loads) / len(loads)
        samples.append(Sample(rate, sum(latencies) / len(latencies), min(latencies), max(latencies)))
    return samples


def _dot(outcome: Outcome, speed: Speed, bound: Bound | None, chosen: str) -> Dot:
    return Dot(outcome.name, speed.memory_bytes / 1e6, middle_rate(outcome, bound) or 0.0, outcome.name == chosen)


def _origin(report: Report) -> Iterator[Block]:
    versions = {name: version for outcome in report.outcomes for name, version in outcome.versions.items()}
    yield Facts({"source": report.source, "kind": report.kind, **report.environment, **versions})
    yield Table("Files of the source", ("file", "SHA-256"), list(report.source_files.items()))
    yield Code(report.command, "The command that repeats it")
