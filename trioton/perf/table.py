"""Table of measurements for a person, and the line that shows how a measurement goes on."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TextIO

from trioton.perf.confidence import Estimate
from trioton.perf.figures import NANOSECONDS, Figures, joined
from trioton.perf.load import Closed, Load
from trioton.perf.measurement import Measurement
from trioton.perf.server_side import ServerFigures

_SHOWN_PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_ERRORS_SHOWN = 3


def time_text(seconds: float) -> str:
    """Three digits, in the unit that fits."""
    if math.isinf(seconds):
        return "∞"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e9)} ns" if seconds else "0"


def rate_text(rate: float) -> str:
    return _digits(rate) if rate < 1000 else f"{rate:.0f}"


def margin_text(estimate: Estimate) -> str:
    """As a part of the figure."""
    return "?" if not math.isfinite(estimate.relative) else f"±{estimate.relative:.1%}"


def load_text(load: Load) -> str:
    if isinstance(load, Closed):
        return str(load.concurrency)
    return f"{rate_text(load.rate)}/s" if load.rate else "as listed"


def table(measurements: Sequence[Measurement], *, marked: Measurement | None = None) -> str:
    """A row for each load; `marked` is the knee, or the greatest rate."""
    percents = [percent for percent in _SHOWN_PERCENTS if any(percent in each.percentiles for each in measurements)]
    header = ["load", "rate/s", "±", "mean", "±", *[f"p{percent:g}" for percent in percents], "p99 sent", "in flight"]
    header += ["queue", "infer", "batch", "errors", ""]
    rows = [_row(each, percents, marked) for each in measurements]
    return _aligned([header, *rows])


def details(measurement: Measurement) -> str:
    """What does not fit into a row: responses, the server's side, errors, and limits of the generator."""
    figures, lines = measurement.figures, []
    if figures.first.count:
        lines.append(
            f"first response p50 {_at(figures, 'first', 50)}, p99 {_at(figures, 'first', 99)}; between responses p50 "
            f"{_at(figures, 'gaps', 50)}, p99 {_at(figures, 'gaps', 99)}; "
            f"{figures.responses / measurement.seconds:.4g} responses/s, "
            f"{figures.tokens / measurement.seconds:.4g} tokens/s"
        )
    if figures.good:
        lines.append(
            f"goodput: {figures.good / measurement.seconds:.4g}/s, {figures.good / _ended(figures):.1%} of all"
        )
    if figures.cancelled:
        lines.append(f"given up by the client: {figures.cancelled}")
    if measurement.server is not None:
        lines += _server_lines(measurement.server)
    ordered = sorted(figures.errors.items(), key=lambda item: -item[1])
    lines += [f"error, {count} times: {text}" for text, count in ordered[:_ERRORS_SHOWN]]
    return "\n".join([*lines, limits_text(measurement)]).strip()


def limits_text(measurement: Measurement) -> str:
    """Why the generator was the limit; nothing where it was not."""
    return "\n".join(f"the generator was the limit: {text}" for text in measurement.limits)


class ProgressLine:
    """One line on a terminal, written anew after each slice. Nothing where it is no terminal."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._is_shown = stream.isatty()

    def show(self, load: Load, slices: Sequence[Figures]) -> None:
        """See `trioton.perf.session.Progress`."""
        if not self._is_shown:
            return
        if not slices:
            text = f"{load}: warming up"
        else:
            whole = joined(slices[-10:])
            p99 = time_text(whole.latency.percentile(99) / NANOSECONDS)
            seconds = sum(each.seconds for each in slices)
            text = f"{load}: {seconds:.1f} s, {rate_text(whole.rate)}/s, p99 {p99}, errors {whole.failed}"
        self._stream.write(f"\r\x1b[K{text[:78]}")
        self._stream.flush()

    def clear(self) -> None:
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _row(measurement: Measurement, percents: Sequence[float], marked: Measurement | None) -> list[str]:
    figures, server = measurement.figures, measurement.server
    notes = ["<" if measurement is marked else "", "generator!" if measurement.limits else ""]
    return [
        load_text(measurement.load),
        rate_text(measurement.rate.value),
        margin_text(measurement.rate),
        time_text(measurement.mean.value),
        margin_text(measurement.mean),
        *[_estimated(measurement.percentiles.get(percent)) for percent in percents],
        time_text(figures.service.percentile(99) / NANOSECONDS),
        _digits(figures.in_flight),
        "" if server is None else time_text(server.queue),
        "" if server is None else time_text(server.compute_infer),
        "" if server is None else f"{server.mean_batch:.3g}",
        str(figures.failed),
        " ".join(note for note in notes if note),
    ]


def _estimated(estimate: Estimate | None) -> str:
    return "" if estimate is None else time_text(estimate.value)


def _server_lines(server: ServerFigures, name: str = "server") -> list[str]:
    parts = [
        f"queue {time_text(server.queue)}",
        f"input {time_text(server.compute_input)}",
        f"infer {time_text(server.compute_infer)}",
        f"output {time_text(server.compute_output)}",
    ]
    if server.cache_hits or server.cache_misses:
        hits = server.cache_hits / (server.cache_hits + server.cache_misses)
        parts.append(f"cache hits {hits:.1%} of {time_text(server.cache_hit)}")
    if 99.0 in server.percentiles:
        low, high = server.percentiles[99.0]
        parts.append(f"p99 {time_text(low)} to {time_text(high)}")
    if server.batch_sizes:
        most = sorted(server.batch_sizes.items(), key=lambda item: -item[1])[:4]
        shown = ", ".join(f"{size} ({count} times)" for size, count in most)
        parts.append(f"batches of {shown}")
    lines = [f"{name}: {time_text(server.request)} a request: {', '.join(parts)}"]
    for part in server.composing:
        lines += _server_lines(part, f"  {part.model}")
    return lines


def _at(figures: Figures, part: str, percent: float) -> str:
    return time_text(getattr(figures, part).percentile(percent) / NANOSECONDS)


def _ended(figures: Figures) -> int:
    return max(1, figures.succeeded + figures.failed + figures.cancelled)


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)
