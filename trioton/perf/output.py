"""Measurements for programs: JSON and CSV. Durations are in seconds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trioton.perf.confidence import Estimate
from trioton.perf.figures import NANOSECONDS
from trioton.perf.histogram import Histogram
from trioton.perf.load import Closed, Load
from trioton.perf.measurement import PERCENTS, Measurement
from trioton.perf.server_side import ServerFigures

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one run of the command has found.

    Attributes:
        facts: what was measured and how, by name.
        marked: the knee, or the greatest rate that keeps the bound; None where there is none.
        mark: what is marked.
        failed_requirements: those that were asked for and not kept.
        is_generator_limited: whether the generator, and not the model, has decided the result.
    """

    facts: Mapping[str, str]
    measurements: Sequence[Measurement]
    marked: Measurement | None = None
    mark: str = ""
    failed_requirements: Sequence[str] = ()
    is_generator_limited: bool = False


def to_json(report: Report) -> dict[str, Any]:
    """As builtins. Infinite margins are null."""
    marked = [index for index, each in enumerate(report.measurements) if each is report.marked]
    return {
        "format": FORMAT,
        "facts": dict(report.facts),
        "measurements": [measurement_json(each) for each in report.measurements],
        "marked": marked[0] if marked else None,
        "mark": report.mark if marked else None,
        "failed_requirements": list(report.failed_requirements),
        "is_generator_limited": report.is_generator_limited,
    }


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    figures = measurement.figures
    return {
        "load": load_json(measurement.load),
        "started_at": measurement.started_at,
        "seconds": measurement.seconds,
        "is_settled": measurement.is_settled,
        "rate": _estimate(measurement.rate),
        "inferences_per_second": figures.inferences / measurement.seconds if measurement.seconds else 0.0,
        "responses_per_second": figures.responses / measurement.seconds if measurement.seconds else 0.0,
        "tokens_per_second": figures.tokens / measurement.seconds if measurement.seconds else 0.0,
        "good_per_second": figures.good / measurement.seconds if measurement.seconds else 0.0,
        "latency": {
            "mean": _estimate(measurement.mean),
            **{f"p{percent:g}": _estimate(found) for percent, found in measurement.percentiles.items()},
        },
        "latency_from_sending": _summary(figures.service),
        "first_response": _summary(figures.first),
        "between_responses": _summary(figures.gaps),
        "lateness": _summary(figures.lateness),
        "in_flight": figures.in_flight,
        "succeeded": figures.succeeded,
        "cancelled": figures.cancelled,
        "errors": dict(figures.errors),
        "processor_share": figures.processor_share,
        "processor_seconds_per_request": figures.processor_seconds / figures.sent if figures.sent else None,
        "generator_limits": list(measurement.limits),
        "server": None if measurement.server is None else _server(measurement.server),
        "histogram": figures.latency.to_json(),
    }


def load_json(load: Load) -> dict[str, Any]:
    if isinstance(load, Closed):
        return {"concurrency": load.concurrency}
    return {"rate": load.rate, "arrivals": type(load.arrivals).__name__.lower(), "seed": load.seed}


def to_csv(measurements: Sequence[Measurement]) -> str:
    """A row for each load; cells are empty where there is no figure."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f"p{percent:g}" for percent in PERCENTS]
    writer.writerow(
        ["concurrency", "offered_rate", "rate", "rate_margin", "mean", "mean_margin"]
        + [column for name in names for column in (name, f"{name}_margin")]
        + ["p99_from_sending", "first_p50", "first_p99", "gap_p50", "gap_p99", "in_flight", "succeeded", "failed"]
        + ["cancelled", "seconds", "processor_share", "generator_limited", "server_request", "server_queue"]
        + ["server_input", "server_infer", "server_output", "server_batch"]
    )
    for each in measurements:
        figures, server, load = each.figures, each.server, each.load
        row: list[object] = [load.concurrency, ""] if isinstance(load, Closed) else ["", load.rate]
        row += [*_cells(each.rate), *_cells(each.mean)]
        for percent in PERCENTS:
            row += _cells(each.percentiles.get(percent))
        row += [_percentile(figures.service, 99), _percentile(figures.first, 50), _percentile(figures.first, 99)]
        row += [_percentile(figures.gaps, 50), _percentile(figures.gaps, 99)]
        row += [figures.in_flight, figures.succeeded, figures.failed, figures.cancelled, each.seconds]
        row += [figures.processor_share, int(bool(each.limits))]
        if server is not None:
            row += [server.request, server.queue, server.compute_input, server.compute_infer, server.compute_output]
            row.append(server.mean_batch)
        else:
            row += [""] * 6
        writer.writerow(row)
    return out.getvalue()


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "margin": estimate.margin if math.isfinite(estimate.margin) else None}


def _cells(estimate: Estimate | None) -> list[object]:
    if estimate is None:
        return ["", ""]
    return [estimate.value, estimate.margin if math.isfinite(estimate.margin) else ""]


def _percentile(histogram: Histogram, percent: float) -> object:
    return histogram.percentile(percent) / NANOSECONDS if histogram.count else ""


def _summary(histogram: Histogram) -> dict[str, float] | None:
    if not histogram.count:
        return None
    found = {f"p{percent:g}": value / NANOSECONDS for percent, value in histogram.percentiles(PERCENTS).items()}
    return {
        "count": histogram.count,
        "mean": histogram.mean / NANOSECONDS,
        "least": histogram.least / NANOSECONDS,
        "greatest": histogram.greatest / NANOSECONDS,
        **found,
    }


def _server(server: ServerFigures) -> dict[str, Any]:
    made = asdict(server)
    made["mean_batch"] = server.mean_batch
    made["batch_sizes"] = {str(size): count for size, count in server.batch_sizes.items()}
    made["percentiles"] = {
        f"p{percent:g}": [low, high if math.isfinite(high) else None]
        for percent, (low, high) in server.percentiles.items()
    }
    made["composing"] = [_server(part) for part in server.composing]
    return made
