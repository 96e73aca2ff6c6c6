"""What a conversion has found, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from trioton.convert.choice import Bound, Speed
from trioton.convert.gate import CHECKS, Finding, Verdict
from trioton.convert.tolerances import Precision, Tolerance

MEASURE_NAMES = {
    "error": "greatest error of an element",
    "cosine": "least cosine",
    "distance": "greatest distance",
    "top-1 agreement": "agreement of the first class",
    "equal elements": "equal elements",
}
# Of a candidate's failures in the text.
_MOST_SHOWN = 5


class Outcome(msgspec.Struct, frozen=True):
    """One candidate. `error` says why there is nothing to judge: a step has failed, or something is not installed."""

    name: str
    backend: str
    precision: Precision
    tolerance: Tolerance
    error: str = ""
    verdict: Verdict | None = None
    speed: Speed | None = None
    versions: dict[str, str] = {}

    @property
    def is_passed(self) -> bool:
        return self.verdict is not None and self.verdict.is_passed

    def with_finding(self, finding: Finding) -> Outcome:
        findings = self.verdict.findings if self.verdict is not None else ()
        return msgspec.structs.replace(self, verdict=Verdict((*findings, finding)))


class Report(msgspec.Struct, frozen=True):
    """The whole. `chosen` is empty where none is good enough, `samples` says where the data comes from; `source_files`
    are digests by path, of the source's own file first."""

    model: str
    source: str
    kind: str
    source_files: dict[str, str]
    reference: str
    reference_reason: str
    samples: str
    is_proven: bool
    cases: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    bound: Bound | None
    chosen: str
    why: str
    environment: dict[str, str]
    command: str

    @property
    def not_passed(self) -> tuple[str, ...]:
        """Names of the candidates that are not good enough, or could not be made."""
        return tuple(outcome.name for outcome in self.outcomes if not outcome.is_passed)


def as_json(report: Report) -> dict[str, Any]:
    """With the worst of each check in place of all that passed."""
    whole: dict[str, Any] = msgspec.to_builtins(report)
    whole["not_passed"] = list(report.not_passed)
    for entry, outcome in zip(whole["outcomes"], report.outcomes, strict=True):
        entry.pop("verdict")
        entry["is_passed"] = outcome.is_passed
        entry["measured"] = measured(outcome)
        entry["failures"] = [msgspec.to_builtins(each) for each in _failures(outcome)]
    return whole


def measured(outcome: Outcome) -> dict[str, float]:
    """The worst of each check."""
    if outcome.verdict is None:
        return {}
    worst = {check: outcome.verdict.worst(check) for check in CHECKS}
    return {check: value for check, value in worst.items() if value is not None}


def as_text(report: Report) -> str:
    lines = [
        f"'{report.model}' of {report.source} ({report.kind})",
        f"  reference: {report.reference}{f' ({report.reference_reason})' if report.reference_reason else ''}",
        f"  data: {report.samples}" + ("" if report.is_proven else ": UNPROVEN, give real samples with --samples"),
        f"  cases: {'; '.join(report.cases)}",
        "",
        *_table(report),
    ]
    for outcome in report.outcomes:
        lines += _reasons(outcome)
    lines += ["", report.why]
    if report.not_passed:
        lines.append(f"NOT PASSED, for the reasons above: {', '.join(report.not_passed)}")
    return "\n".join(lines)


def _table(report: Report) -> Iterator[str]:
    rows = [("candidate", "backend", "precision", "gate", "worst error", "rate/s", "p99 ms", "memory MB")]
    for outcome in report.outcomes:
        name = f"{outcome.name}{' *' if outcome.name == report.chosen else ''}"
        state = "passed" if outcome.is_passed else "FAILED" if outcome.verdict is not None else "not made"
        rows.append(
            (name, outcome.backend, outcome.precision.value, state, _worst(outcome), *_speed(outcome, report.bound))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()


def _worst(outcome: Outcome) -> str:
    found = measured(outcome)
    words = {"error": "{:.1e}", "cosine": "cos {:.4f}", "top-1 agreement": "top-1 {:.3f}"}
    return ", ".join(text.format(found[check]) for check, text in words.items() if check in found) or "-"


def _speed(outcome: Outcome, bound: Bound | None) -> tuple[str, str, str]:
    if outcome.speed is None:
        return "-", "-", "-"
    rates = outcome.speed.rates(bound)
    middle, spread = middle_rate(outcome, bound) or 0.0, (max(rates) - min(rates)) / 2
    loads = [load for loads in outcome.speed.rounds for load in loads if load.rate in rates]
    p99 = max((load.latencies_ms["p99"] for load in loads), default=0.0)
    return f"{middle:.0f} ± {spread:.0f}", f"{p99:.2f}" if loads else "-", f"{outcome.speed.memory_bytes / 1e6:.0f}"


def middle_rate(outcome: Outcome, bound: Bound | None) -> float | None:
    """The rate that the choice is made by; None where nothing was measured."""
    if outcome.speed is None:
        return None
    rates = outcome.speed.rates(bound)
    return sum(rates) / len(rates)


def _reasons(outcome: Outcome) -> Iterator[str]:
    if outcome.error:
        yield f"  {outcome.name}: {outcome.error}"
    failures = _failures(outcome)
    for finding in failures[:_MOST_SHOWN]:
        yield f"  {outcome.name}: {finding}"
    if len(failures) > _MOST_SHOWN:
        yield f"  {outcome.name}: and {len(failures) - _MOST_SHOWN} more"


def _failures(outcome: Outcome) -> Sequence[Finding]:
    return () if outcome.verdict is None else outcome.verdict.failures
