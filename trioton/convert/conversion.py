"""A conversion from its source to the choice: runs the planned steps, has every candidate judged, measures those that
pass. Nothing here writes to a repository."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trioton.convert.cases import Case, Way, calibration_split, plan_cases, single_cases
from trioton.convert.choice import Bound, Contender, Load, Speed, choose
from trioton.convert.describing import described
from trioton.convert.entry import model_config, write_entry
from trioton.convert.gate import Finding, Verdict, judge, self_check
from trioton.convert.packages import how_to_install, missing
from trioton.convert.plan import Candidate, Plan
from trioton.convert.processes import Processes, StepFailed
from trioton.convert.report import Outcome, Report
from trioton.convert.samples import random_rows, read_json, read_npz, rows_of_arrays, rows_of_json
from trioton.convert.sources import Source
from trioton.convert.storage import load_answers, save_cases
from trioton.convert.targets import AS_IS
from trioton.convert.tensors import Arrays, Description, TensorSpec, observed_outputs
from trioton.convert.tolerances import TOLERANCES, Precision, Tolerance
from trioton.convert.watching import WatchedFiles, files_of

CASES, EXAMPLE, CALIBRATION, ROWS = "cases.npz", "example.npz", "calibration.npz", "rows.npz"
REFERENCE, OWN = "reference.npz", "own.npz"
# Each candidate is measured so often, in turns with the others.
_ROUNDS = 2


class CannotConvert(Exception):
    """The source cannot be run, or is not what it was said to be; the text says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be done. `concurrency` empty: nothing is measured. Overridden limits of tolerances are by field."""

    model: str
    source: Source
    plan: Plan
    inputs: Sequence[TensorSpec]
    samples: Sequence[Path]
    max_batch_size: int | None
    check: Path | None
    overrides: dict[str, float]
    bound: Bound | None
    concurrency: Sequence[int]
    load_seconds: float
    command: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every candidate is compared with. `files` are what the source has read besides its own file, `parameters`
    those of a configuration that serves it as it is."""

    description: Description
    largest: int
    rows: list[Arrays]
    cases: list[Case]
    outputs: tuple[TensorSpec, ...]
    reference: dict[str, Arrays]
    own: dict[str, Arrays]
    about: dict[str, Any]
    files: list[Path]
    parameters: dict[str, str]


class Conversion:
    """Steps run in `work`, by `processes`; `say` is given a line for each."""

    def __init__(self, wanted: Wanted, work: Path, processes: Processes, say: Callable[[str], None]) -> None:
        self._wanted, self._work, self._processes, self._say = wanted, work, processes, say

    def run(self) -> Report:
        """Raises CannotConvert, UsageError, OSError."""
        wanted = self._wanted
        files = WatchedFiles(self._given_files())
        prepared = self._prepare()
        of_source = [*files_of(wanted.source), *prepared.files]
        files.add(of_source)
        made = self._make(prepared)
        outcomes = [self._judged(candidate, made, prepared) for candidate in wanted.plan.candidates]
        outcomes = self._measured(outcomes, prepared)
        contenders = [
            Contender(outcome.name, outcome.precision, candidate.is_portable, outcome.speed)
            for outcome, candidate in zip(outcomes, wanted.plan.candidates, strict=True)
            if outcome.is_passed
        ]
        chosen = choose(contenders, wanted.bound)
        if changed := files.changed():
            raise CannotConvert(
                f"changed during the conversion, so that nothing is known of what is there now: "
                f"{', '.join(map(str, changed))}"
            )
        return Report(
            model=wanted.model,
            source=wanted.source.path + (f":{wanted.source.factory}" if wanted.source.factory else ""),
            kind=wanted.source.kind.value,
            source_files=files.digests(of_source),
            reference=prepared.about["precision"],
            reference_reason=prepared.about["reason"],
            samples=f"{len(prepared.rows)} samples of {', '.join(map(str, wanted.samples)) or 'random numbers'}",
            is_proven=bool(wanted.samples),
            cases=tuple(case.name for case in prepared.cases),
            outcomes=tuple(outcomes),
            bound=wanted.bound,
            chosen=chosen.name if chosen else "",
            why=_why(chosen, contenders, wanted.bound),
            environment={"machine": platform.machine(), "system": platform.platform(), "cores": str(os.cpu_count())},
            command=wanted.command,
        )

    def entry(self, name: str) -> Path:
        """The model directory of a candidate, as it was judged."""
        return self._work / "candidates" / name / self._wanted.model

    def _given_files(self) -> list[Path]:
        wanted = self._wanted
        given = [Path(each.file) for each in wanted.plan.candidates if not each.made_by]
        return [*files_of(wanted.source), *wanted.samples, *([wanted.check] if wanted.check else []), *given]

    def _prepare(self) -> Prepared:
        wanted = self._wanted
        of_json = {path: read_json(path) for path in wanted.samples if path.suffix == ".json"}
        of_arrays = {path: read_npz(path) for path in wanted.samples if path not in of_json}
        about_source = self._step("describe", {})
        told = about_source["inputs"]
        specs = msgspec.convert(told, list[TensorSpec])
        arrays = list(of_arrays.values())
        description, largest = described(specs, wanted.inputs, arrays, wanted.max_batch_size)
        rows = [
            row for path, each in of_arrays.items() for row in rows_of_arrays(each, description, f"--samples '{path}'")
        ]
        for path, entries in of_json.items():
            rows += rows_of_json(entries, description, path)
        rows = rows or random_rows(description)
        if wanted.plan.calibrates:
            calibration, rows = calibration_split(rows)
            save_cases(self._work / CALIBRATION, single_cases(calibration, description))
        cases = plan_cases(rows, description, largest)
        save_cases(self._work / CASES, cases)
        # An axis of one element in the example would be frozen.
        example = next((case for case in cases if case.rows > 1 and case.way is Way.TOGETHER), cases[0])
        save_cases(self._work / EXAMPLE, [example])
        about = self._step("reference", {"cases": CASES, "reference": REFERENCE, "own": OWN})
        reference, own = _whole(load_answers(self._work / REFERENCE)), _whole(load_answers(self._work / OWN))
        interacting = self_check(cases, reference)
        if interacting is not None:
            raise CannotConvert(
                f"in the source itself the rows of a batch affect each other ({interacting}): its first dimension is "
                "no batch; --max-batch-size=0 serves it without one"
            )
        questions = [reference[case.name] for case in cases if case.name == case.asks]
        outputs = observed_outputs(questions, about["datatypes"], is_batching=description.is_batching)
        files = [Path(file) for file in about_source["files"]]
        return Prepared(
            description, largest, rows, cases, outputs, reference, own, about, files, about_source["parameters"]
        )

    def _make(self, prepared: Prepared) -> dict[str, StepFailed | dict[str, Any]]:
        """What became of each step."""
        common = {
            "description": msgspec.to_builtins(prepared.description),
            "example": EXAMPLE,
            "outputs": [output.name for output in prepared.outputs],
            "calibration": CALIBRATION,
            "cases": CASES,
            "largest": prepared.largest,
        }
        done: dict[str, StepFailed | dict[str, Any]] = {}
        for step in self._wanted.plan.steps:
            before = done.get(step.after)
            lacking = missing(step.packages)
            if isinstance(before, StepFailed):
                done[step.name] = StepFailed(f"it is made of '{step.after}', which failed")
            elif lacking:
                done[step.name] = StepFailed(how_to_install(lacking))
            else:
                try:
                    done[step.name] = self._step(step.program, {**common, **step.arguments}, step.name)
                except StepFailed as failure:
                    done[step.name] = failure
        return done

    def _judged(
        self, candidate: Candidate, made: dict[str, StepFailed | dict[str, Any]], prepared: Prepared
    ) -> Outcome:
        tolerance = self._tolerance(candidate.precision)
        outcome = Outcome(candidate.name, candidate.backend, candidate.precision, tolerance)
        step = made.get(candidate.made_by, {})
        if isinstance(step, StepFailed):
            return msgspec.structs.replace(outcome, error=str(step))
        entry, file = self.entry(candidate.name), self._work / candidate.file
        row = prepared.rows[0]
        parameters = prepared.parameters if candidate.name == AS_IS else {}
        config = model_config(candidate, prepared.description, prepared.outputs, prepared.largest, row, parameters)
        write_entry(entry, candidate, file, config, row)
        answers_file = f"candidates/{candidate.name}/answers.npz"
        try:
            asked = {"cases": CASES, "answers": answers_file, **_scalars(prepared)}
            served = self._serve(candidate.name, asked, f"ask-{candidate.name}")
        except StepFailed as failure:
            return msgspec.structs.replace(
                outcome, verdict=Verdict((Finding("serving", "all", False, detail=str(failure)),))
            )
        answers = load_answers(self._work / answers_file)
        verdict = judge(prepared.cases, prepared.reference, prepared.own, answers, tolerance)
        if self._wanted.check is not None:
            verdict = Verdict((*verdict.findings, *self._checked(candidate.name, answers_file)))
        versions = {**step.get("versions", {}), **served["versions"]}
        return msgspec.structs.replace(outcome, verdict=verdict, versions=versions)

    def _checked(self, name: str, answers: str) -> Sequence[Finding]:
        """By the user's own check."""
        arguments = {"check": str(self._wanted.check), "cases": CASES, "answers": answers, "reference": REFERENCE}
        try:
            result = self._step("check", arguments, f"check-{name}")
        except StepFailed as failure:
            return [Finding("your check", "all", False, detail=str(failure))]
        failed = result["failed"]
        return [
            Finding("your check", case, case not in failed, detail=failed.get(case, "")) for case in result["cases"]
        ]

    def _measured(self, outcomes: Sequence[Outcome], prepared: Prepared) -> list[Outcome]:
        wanted = self._wanted
        passed = [outcome.name for outcome in outcomes if outcome.is_passed]
        if not wanted.concurrency or not wanted.load_seconds or not passed:
            return list(outcomes)
        save_cases(self._work / ROWS, [case for case in prepared.cases if case.name == case.asks][:1])
        rounds: dict[str, list[tuple[Load, ...]]] = {name: [] for name in passed}
        memory: dict[str, int] = {}
        failed: dict[str, Finding] = {}
        arguments = {
            "cases": CASES,
            "case_count": 1,
            "levels": list(wanted.concurrency),
            "seconds": wanted.load_seconds,
            **_scalars(prepared),
        }
        for number in range(_ROUNDS):
            for name in passed if number % 2 == 0 else reversed(passed):
                if name in failed:
                    continue
                try:
                    result = self._serve(name, arguments, f"load-{name}")
                except StepFailed as failure:
                    failed[name] = Finding("load", "all", False, detail=str(failure))
                    continue
                rounds[name].append(msgspec.convert(result["levels"], tuple[Load, ...]))
                memory[name] = result["memory_bytes"]
        return [
            outcome.with_finding(failed[outcome.name])
            if outcome.name in failed
            else msgspec.structs.replace(outcome, speed=Speed(tuple(rounds[outcome.name]), memory[outcome.name]))
            if outcome.name in rounds
            else outcome
            for outcome in outcomes
        ]

    def _serve(self, name: str, arguments: dict[str, Any], title: str) -> dict[str, Any]:
        given = {"repository": f"candidates/{name}", "model": self._wanted.model, **arguments}
        return self._processes.run("serve", given, title)

    def _step(self, program: str, arguments: dict[str, Any], name: str = "") -> dict[str, Any]:
        self._say(name or program)
        try:
            return self._processes.run(program, {"source": msgspec.to_builtins(self._wanted.source), **arguments}, name)
        except StepFailed as failure:
            if program in ("describe", "reference"):
                raise CannotConvert(str(failure)) from None
            raise

    def _tolerance(self, precision: Precision) -> Tolerance:
        usual = TOLERANCES[precision]
        given = {name: value for name, value in self._wanted.overrides.items() if getattr(usual, name) is not None}
        return msgspec.structs.replace(usual, **given)


def _scalars(prepared: Prepared) -> dict[str, list[str]]:
    """Tensors that have no dimensions besides the batch in the model, and one element more as they are served."""
    specs = {"scalar_inputs": prepared.description.inputs, "scalar_outputs": prepared.outputs}
    return {kind: [spec.name for spec in each if not spec.dims] for kind, each in specs.items()}


def _whole(answers: dict[str, Arrays | str]) -> dict[str, Arrays]:
    return {name: answer for name, answer in answers.items() if not isinstance(answer, str)}


def _why(chosen: Contender | None, contenders: Sequence[Contender], bound: Bound | None) -> str:
    if not contenders:
        return "nothing is written: no candidate has passed the gate"
    if chosen is None:
        return f"nothing is written: no candidate keeps {bound}"
    if len(contenders) == 1:
        return f"chosen: {chosen.name}, the only one that has passed"
    if chosen.speed is None:
        return f"chosen: {chosen.name}, of the highest precision (nothing was measured)"
    return f"chosen: {chosen.name}" + (f", by its rate under {bound}" if bound else ", by its rate")
