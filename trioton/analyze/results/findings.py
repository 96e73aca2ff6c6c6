"""Findings of an analysis: all that its files and its report show, as one value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from trioton.analyze.search.aim import Aim
from trioton.analyze.search.candidates import Measured, Record, Stages
from trioton.analyze.search.curves import crossing, keeps
from trioton.analyze.search.plan import DEFAULT, Plan
from trioton.analyze.search.verdict import Verdict

DEFAULT_NAME = "default"


class Shown(msgspec.Struct, frozen=True):
    """One measurement."""

    rate: float
    seconds: float
    stage: str
    achieved: float
    keeps: bool
    latency_ms: float | None
    margin_ms: float | None
    percentiles_ms: dict[str, float]
    error_share: float
    memory_bytes: int
    processor_us: float
    mean_batch: float
    stages_ms: dict[str, float]
    limits: tuple[str, ...]


class CandidateFindings(msgspec.Struct, frozen=True):
    """A candidate. `rate` is the greatest that keeps the bound, or that of a fixed rate; None where it keeps none or
    was not measured. `bound_note` is `at least` or `less than` where the curve does not cross the bound."""

    name: str
    settings: dict[str, str]
    predicted_rate: float | None
    rate: float | None
    bound_note: str
    memory_bytes: int
    processor_us: float
    latency_ms: float | None
    failure: str
    is_finalist: bool
    measured: tuple[Shown, ...]


class ComparisonFindings(msgspec.Struct, frozen=True):
    """Of a finalist with the best one: `gain` is the mean difference of logarithms, `chance` what would be as far apart
    if both were alike."""

    candidate: str
    gain: float
    chance: float
    turns: int


class Findings(msgspec.Struct, frozen=True):
    """The whole. `proposed` is the name of a candidate; `config_before` and `config_after` are `config.pbtxt`."""

    model: str
    repository: str
    objective: str
    bound: str
    fixed_rate: float
    proposed: str
    is_proven: bool
    why: str
    equals: tuple[str, ...]
    comparisons: tuple[ComparisonFindings, ...]
    contest_rate: float
    candidates: tuple[CandidateFindings, ...]
    sorted_out: int
    left_out: dict[str, str]
    notes: tuple[str, ...]
    config_before: str
    config_after: str
    command: str
    seed: int
    budget_seconds: float
    spent_seconds: float
    environment: dict[str, str]
    service_times_ms: dict[str, dict[int, float]]

    def candidate(self, name: str) -> CandidateFindings:
        return next(each for each in self.candidates if each.name == name)


def name_of(key: str) -> str:
    return key or DEFAULT_NAME


def candidate_findings(plan: Plan, settings: Mapping[str, Mapping[str, str]]) -> tuple[CandidateFindings, ...]:
    """All that were measured: the default, then the best first, then those that are out of the question."""
    ranked = plan.ranked()
    others = [record for record in plan.records.values() if record not in ranked]
    ordered = sorted([*ranked, *others], key=lambda record: record.candidate.key != DEFAULT)
    return tuple(_of_record(record, plan, settings) for record in ordered)


def comparisons(verdict: Verdict) -> tuple[ComparisonFindings, ...]:
    return tuple(
        ComparisonFindings(name_of(key), each.gain, each.chance, each.pairs)
        for key, each in verdict.comparisons.items()
    )


def _of_record(record: Record, plan: Plan, settings: Mapping[str, Mapping[str, str]]) -> CandidateFindings:
    aim, key = plan.aim, record.candidate.key
    rate, note = _rate(record, aim, plan)
    outcomes = [each.outcome for each in record.measured if not each.outcome.failure]
    total = sum(each.trial.seconds for each in record.measured) or 1.0
    processor = sum(each.outcome.processor * each.trial.seconds for each in record.measured) / total
    latencies = [each.latency for each in outcomes if each.latency is not None]
    return CandidateFindings(
        name=name_of(key),
        settings=dict(settings.get(key, {})),
        predicted_rate=record.candidate.predicted,
        rate=rate,
        bound_note=note,
        memory_bytes=record.memory,
        processor_us=1e6 * processor,
        latency_ms=1e3 * latencies[-1] if latencies else None,
        failure=record.failure,
        is_finalist=key in plan.turns,
        measured=tuple(_shown(each, aim) for each in record.measured if not each.outcome.failure),
    )


def _rate(record: Record, aim: Aim, plan: Plan) -> tuple[float | None, str]:
    if record.failure or not record.measured:
        return None, ""
    if aim.has_fixed_rate:
        return (plan.rate, "") if plan.value(record) > -math.inf else (None, "")
    found = crossing(record.measured, aim.bound)
    return found.rate, "less than" if found.is_below else "at least" if found.is_above else ""


def _shown(each: Measured, aim: Aim) -> Shown:
    outcome = each.outcome
    return Shown(
        rate=each.trial.rate,
        seconds=each.trial.seconds,
        stage=each.trial.stage,
        achieved=outcome.achieved,
        keeps=keeps(outcome, each.trial.rate, aim.bound),
        latency_ms=_milliseconds(outcome.latency),
        margin_ms=_milliseconds(outcome.margin),
        percentiles_ms={name: 1e3 * value for name, value in outcome.percentiles.items()},
        error_share=outcome.error_share,
        memory_bytes=outcome.memory,
        processor_us=1e6 * outcome.processor,
        mean_batch=outcome.mean_batch,
        stages_ms=_stages(outcome.stages),
        limits=outcome.limits,
    )


def _stages(stages: Stages | None) -> dict[str, float]:
    if stages is None:
        return {}
    return {name: 1e3 * getattr(stages, name) for name in ("queue", "input", "infer", "output")}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def write_json(findings: Findings, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(findings), indent=2) + b"\n")


def read_json(path: Path) -> Findings:
    """Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Findings)


def named(candidates: Sequence[CandidateFindings]) -> dict[str, CandidateFindings]:
    return {each.name: each for each in candidates}
