"""Findings as text for a terminal, and as CSV."""

from __future__ import annotations

import csv
import io

from trioton.analyze.results.findings import CandidateFindings, Findings
from trioton.report.numbers import number
from trioton.tables import format_table

_MOST_ROWS = 20


def as_text(findings: Findings) -> str:
    """What was found, the proposal last."""
    rows = [_row(each, findings) for each in findings.candidates[:_MOST_ROWS]]
    header = ("", "candidate", "rate/s", f"latency ms ({findings.bound})", "memory MB", "CPU us", "remark")
    lines = [f"'{findings.model}', {findings.objective} under {findings.bound}", format_table(header, rows)]
    if len(findings.candidates) > _MOST_ROWS:
        lines.append(f"… and {len(findings.candidates) - _MOST_ROWS} more, see the report")
    lines.append(f"{findings.sorted_out} candidates were sorted out by the formula, without a measurement")
    lines += [f"not tried: {name}: {reason}" for name, reason in findings.left_out.items()]
    lines += [f"note: {note}" for note in findings.notes]
    lines.append(f"proposed: {findings.proposed} ({findings.why})")
    if findings.equals:
        lines.append(f"not told apart from it: {'; '.join(findings.equals)}")
    return "\n".join(lines)


def _row(each: CandidateFindings, findings: Findings) -> tuple[str, ...]:
    return (
        "*" if each.name == findings.proposed else "",
        each.name,
        f"{each.bound_note} {number(each.rate)}".strip() if each.rate is not None else "-",
        number(each.latency_ms) if each.latency_ms is not None else "-",
        f"{each.memory_bytes / 1e6:.0f}" if each.memory_bytes else "-",
        f"{each.processor_us:.0f}" if each.processor_us else "-",
        each.failure or ("finalist" if each.is_finalist else ""),
    )


_COLUMNS = (
    "candidate",
    "stage",
    "offered_rate",
    "seconds",
    "achieved_rate",
    "keeps_bound",
    "latency_ms",
    "margin_ms",
    "p50_ms",
    "p90_ms",
    "p95_ms",
    "p99_ms",
    "error_share",
    "memory_bytes",
    "processor_us_per_request",
    "mean_batch",
    "queue_ms",
    "input_ms",
    "infer_ms",
    "output_ms",
    "failure",
)


def as_csv(findings: Findings) -> str:
    """A row for each measurement, and one for each candidate that failed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for candidate in findings.candidates:
        for each in candidate.measured:
            percentiles = [each.percentiles_ms.get(name, "") for name in ("p50", "p90", "p95", "p99")]
            stages = [each.stages_ms.get(name, "") for name in ("queue", "input", "infer", "output")]
            writer.writerow(
                [
                    *(candidate.name, each.stage, each.rate, each.seconds, each.achieved, each.keeps),
                    *(each.latency_ms, each.margin_ms, *percentiles, each.error_share, each.memory_bytes),
                    *(each.processor_us, each.mean_batch, *stages, ""),
                ]
            )
        if candidate.failure:
            writer.writerow([candidate.name, *[""] * (len(_COLUMNS) - 2), candidate.failure])
    return file.getvalue()
