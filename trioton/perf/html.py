"""The page of `--html`: plots and tables of measurements in one file (`trioton.report`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trioton.perf.confidence import Estimate
from trioton.perf.figures import NANOSECONDS
from trioton.perf.load import Closed
from trioton.perf.measurement import PERCENTS, Measurement
from trioton.perf.output import Report
from trioton.perf.table import load_text, margin_text, rate_text, time_text
from trioton.report import Axis, Bar, Block, Facts, Line, LinePlot, Page, Sample, Section, StackedBars, Table, Text

_MILLISECONDS = 1e3
_CURVE = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999)
_STAGES = ("queue", "input", "infer", "output", "outside of the server")


def page(report: Report) -> str:
    """The whole file."""
    measurements = report.measurements
    blocks: list[Block] = [Section("What was measured", [Facts(report.facts)])]
    limits = dict.fromkeys(text for each in measurements for text in each.limits)
    blocks += [Text(f"The generator was the limit: {text}", is_warning=True) for text in limits]
    if report.failed_requirements:
        blocks.append(Text(f"Not kept: {', '.join(report.failed_requirements)}", is_warning=True))
    marked = report.marked
    if marked is not None:
        blocks.append(Text(f"{report.mark}: {marked.load}, {rate_text(marked.rate.value)} requests a second"))
    if len(measurements) > 1:
        blocks.append(_rate_plot(measurements))
    blocks += [_percentile_plot(measurements), *_stages(measurements), _table(report)]
    return Page("trioton perf", blocks, lead="Latency counts from the moment that was planned for a request.").html()


def _rate_plot(measurements: Sequence[Measurement]) -> LinePlot:
    lines = []
    for percent in (50.0, 99.0):
        found = [(each, each.percentiles[percent]) for each in measurements if percent in each.percentiles]
        samples = [_banded(each.rate.value, estimate) for each, estimate in found]
        lines.append(Line(f"p{percent:g}", samples))
    return LinePlot(
        "Latency against rate",
        Axis("requests a second", from_zero=True),
        Axis("latency", "ms", is_log=True),
        lines,
        "A point for each load; bands are intervals of 95% confidence.",
    )


def _banded(x: float, estimate: Estimate) -> Sample:
    value, margin = estimate.value * _MILLISECONDS, estimate.margin * _MILLISECONDS
    if not math.isfinite(margin):
        return Sample(x, value)
    return Sample(x, value, max(value - margin, value / 100), value + margin)


def _percentile_plot(measurements: Sequence[Measurement]) -> LinePlot:
    lines = []
    for each in measurements:
        found = each.latency.percentiles(float(percent) for percent in _CURVE)
        samples = [
            Sample(100 / (100 - percent), value / NANOSECONDS * _MILLISECONDS) for percent, value in found.items()
        ]
        lines.append(Line(_load_name(each), samples))
    return LinePlot(
        "Percentiles of the latency",
        Axis("one request in … is slower", is_log=True),
        Axis("latency", "ms", is_log=True),
        lines,
        "10 on the horizontal axis is p90, 100 is p99, 1000 is p99.9.",
    )


def _stages(measurements: Sequence[Measurement]) -> list[Block]:
    bars = []
    for each in measurements:
        server = each.server
        if server is None or not server.succeeded:
            continue
        inside = [server.queue, server.compute_input, server.compute_infer, server.compute_output]
        rest = max(0.0, each.mean.value - sum(inside))
        bars.append(Bar(_load_name(each), [value * _MILLISECONDS for value in (*inside, rest)]))
    if not bars:
        return []
    plot = StackedBars("Where the time goes", Axis("mean latency", "ms"), _STAGES, bars, "Means of a request.")
    shares = StackedBars("The same as shares", Axis("share", "%"), _STAGES, bars, as_shares=True)
    return [plot, shares]


def _table(report: Report) -> Table:
    measurements = report.measurements
    percents = [percent for percent in PERCENTS if any(percent in each.percentiles for each in measurements)]
    columns = ["load", "requests/s", "margin", "mean", *[f"p{percent:g}" for percent in percents], "p99 from sending"]
    columns += ["in flight", "batch", "errors"]
    rows = []
    for each in measurements:
        row = [_load_name(each), rate_text(each.rate.value), margin_text(each.rate), time_text(each.mean.value)]
        row += [
            time_text(each.percentiles[percent].value) if percent in each.percentiles else "" for percent in percents
        ]
        row += [time_text(each.figures.service.percentile(99) / NANOSECONDS), f"{each.figures.in_flight:.3g}"]
        row += ["" if each.server is None else f"{each.server.mean_batch:.3g}", str(each.figures.failed)]
        rows.append(row)
    marked = frozenset(index for index, each in enumerate(measurements) if each is report.marked)
    return Table("All loads", columns, rows, marked)


def _load_name(measurement: Measurement) -> str:
    load = measurement.load
    return f"{load.concurrency} at a time" if isinstance(load, Closed) else load_text(load)
