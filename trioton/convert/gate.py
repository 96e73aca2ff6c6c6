"""The gate: compares a candidate's answers with the reference's, and says which of them are too far away.

Pure: arrays in, verdict out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from trioton.convert.cases import Case
from trioton.convert.measures import cosine, differing_top, distance, error, share_equal, usual_size
from trioton.convert.tensors import Array, Arrays
from trioton.convert.tolerances import Tolerance

# What a source's own rounding may add to the tolerance: twice its own error, and no more than this.
_MOST_OWN_ERROR = 1e-2


class Finding(msgspec.Struct, frozen=True):
    """One thing that was checked. `measured` and `allowed` are texts of numbers, empty where there is none."""

    check: str
    case: str
    is_passed: bool
    output: str = ""
    measured: float | None = None
    allowed: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.case}, output '{self.output}'" if self.output else self.case
        numbers = "" if self.measured is None else f" {self.measured:.3g} (allowed {self.allowed:.3g})"
        return f"{place}: {self.check}{numbers}{f': {self.detail}' if self.detail else ''}"


class Verdict(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]

    @property
    def is_passed(self) -> bool:
        return bool(self.findings) and all(finding.is_passed for finding in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.is_passed)

    def worst(self, check: str) -> float | None:
        """The worst that was measured in a check; None where it was not made."""
        found = [
            finding.measured for finding in self.findings if finding.check == check and finding.measured is not None
        ]
        if not found:
            return None
        return min(found) if check in _LEAST_COUNTS else max(found)


ERROR, COSINE, DISTANCE, TOP1, EQUAL, ANSWER = (
    "error",
    "cosine",
    "distance",
    "top-1 agreement",
    "equal elements",
    "answer",
)
CHECKS = (ERROR, COSINE, DISTANCE, TOP1, EQUAL)
_LEAST_COUNTS = frozenset({COSINE, TOP1, EQUAL})

Answers = Mapping[str, Arrays | str]
"""By the name of the case; a text says why there is none."""


def judge(
    cases: Sequence[Case],
    reference: Mapping[str, Arrays],
    own: Mapping[str, Arrays],
    answers: Answers,
    tolerance: Tolerance,
) -> Verdict:
    """`reference` has the answer to each question (`Case.asks`), `own` what the source answers in its own precision,
    whose error adds to what is allowed; empty where that is the reference."""
    sizes = _usual_sizes(reference)
    findings: list[Finding] = []
    for case in cases:
        answer = answers.get(case.name, "no answer")
        if isinstance(answer, str):
            findings.append(Finding(ANSWER, case.name, False, detail=answer))
            continue
        wanted = _rows(reference[case.asks], case)
        same = _rows(own[case.asks], case) if case.asks in own else wanted
        findings += _compared(case, wanted, same, answer, tolerance, sizes)
    findings += _top1_findings(cases, reference, answers, tolerance, sizes)
    return Verdict(tuple(findings))


def _rows(answer: Arrays, case: Case) -> Arrays:
    """Of the answer to a question those rows that the case asks for."""
    if case.name == case.asks:
        return answer
    return {name: array[: case.rows] for name, array in answer.items()}


def _compared(
    case: Case, wanted: Arrays, own: Arrays, answer: Arrays, tolerance: Tolerance, sizes: Mapping[str, float]
) -> Iterator[Finding]:
    if missing := sorted(wanted.keys() - answer.keys()):
        yield Finding(ANSWER, case.name, False, detail=f"it lacks {', '.join(missing)}")
        return
    for name, expected in wanted.items():
        found = answer[name]
        if found.shape != expected.shape:
            shapes = f"expected shape {list(expected.shape)}, got {list(found.shape)}"
            yield Finding(ANSWER, case.name, False, name, detail=shapes)
        elif not np.issubdtype(expected.dtype, np.floating):
            allowed = tolerance.equal - (1 - share_equal(expected, own[name]))
            share = share_equal(expected, found)
            yield Finding(EQUAL, case.name, share >= allowed, name, share, allowed)
        else:
            yield from _compared_floats(case.name, name, expected, own[name], found, tolerance, sizes[name])


def _compared_floats(
    case: str, name: str, expected: Array, own: Array, found: Array, tolerance: Tolerance, size: float
) -> Iterator[Finding]:
    if not np.array_equal(np.isfinite(expected), np.isfinite(found)):
        yield Finding(ANSWER, case, False, name, detail="infinities or NaN are elsewhere than in the reference")
        return
    if tolerance.error is not None:
        allowed = tolerance.error + min(2 * error(expected, own, size), _MOST_OWN_ERROR)
        measured = error(expected, found, size)
        yield Finding(ERROR, case, measured <= allowed, name, measured, allowed)
    if tolerance.cosine is not None:
        measured = cosine(expected, found)
        yield Finding(COSINE, case, measured >= tolerance.cosine, name, measured, tolerance.cosine)
    if tolerance.distance is not None:
        measured = distance(expected, found, size)
        yield Finding(DISTANCE, case, measured <= tolerance.distance, name, measured, tolerance.distance)


def _top1_findings(
    cases: Sequence[Case],
    reference: Mapping[str, Arrays],
    answers: Answers,
    tolerance: Tolerance,
    sizes: Mapping[str, float],
) -> Iterator[Finding]:
    """Over the rows of all cases together: a single case has too few for a share."""
    if tolerance.top1 is None:
        return
    counts: dict[str, tuple[int, int]] = {}
    for case in cases:
        answer = answers.get(case.name)
        for name, expected in _rows(reference[case.asks], case).items():
            found = answer.get(name) if isinstance(answer, dict) else None
            if found is None or found.shape != expected.shape or expected.ndim < 2 or expected.shape[-1] < 2:
                continue
            if np.issubdtype(expected.dtype, np.floating):
                differing, total = differing_top(expected, found, sizes[name])
                before = counts.get(name, (0, 0))
                counts[name] = (before[0] + differing, before[1] + total)
    for name, (differing, total) in counts.items():
        share = 1 - differing / total if total else 1.0
        yield Finding(TOP1, f"{total} rows", share >= tolerance.top1, name, share, tolerance.top1)


def _usual_sizes(reference: Mapping[str, Arrays]) -> dict[str, float]:
    by_name: dict[str, list[Array]] = {}
    for answer in reference.values():
        for name, array in answer.items():
            if np.issubdtype(array.dtype, np.floating):
                by_name.setdefault(name, []).append(array)
    return {name: usual_size(arrays) for name, arrays in by_name.items()}


def self_check(cases: Sequence[Case], reference: Mapping[str, Arrays], tolerance: float = 1e-3) -> Finding | None:
    """Whether the rows of a batch affect each other in the source itself, by the answers to the rows alone (cases of
    `Way.ALONE`, under their own names); None where they do not."""
    sizes = _usual_sizes(reference)
    for case in cases:
        alone = reference.get(case.name)
        if case.name == case.asks or alone is None:
            continue
        for name, expected in _rows(reference[case.asks], case).items():
            found = alone[name]
            if found.shape != expected.shape:
                return Finding(ANSWER, case.name, False, name, detail="the shape depends on the other rows")
            if np.issubdtype(expected.dtype, np.floating):
                measured = error(expected, found, sizes[name])
                if measured > tolerance:
                    return Finding(ERROR, case.name, False, name, measured, tolerance)
    return None
