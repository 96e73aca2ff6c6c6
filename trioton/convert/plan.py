"""Plans a conversion: which steps run, on which files, and what they make. Pure.

<work>/steps/<number>-<program>/   arguments.json, log.txt, run.sh and result.json of a process
<work>/made/<target>/              what the steps make
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from trioton.convert.sources import Source, SourceKind
from trioton.convert.targets import AS_IS, DEFAULTS, SERVED, TARGETS, TO_ONNX, Target, refusal
from trioton.convert.tolerances import Precision
from trioton.flags.fields import UsageError

ONNX = "onnx"


@dataclass(frozen=True, slots=True)
class Step:
    """One process: a module of `programs/` and its own arguments. `packages` must be installed; `after` is the step
    that makes what it reads, empty for the source."""

    name: str
    program: str
    arguments: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    after: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may be served in the end. `made_by` is the last step, empty for files that are there already; `file` is the
    model's file or folder, below the work folder or absolute."""

    name: str
    backend: str
    filename: str
    precision: Precision
    file: str
    made_by: str = ""
    is_portable: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...]
    candidates: tuple[Candidate, ...]

    @property
    def calibrates(self) -> bool:
        return any(step.name in TARGETS and TARGETS[step.name].needs_samples for step in self.steps)


def wanted_targets(names: Sequence[str], kind: SourceKind, *, has_samples: bool) -> tuple[str, ...]:
    """Raises UsageError."""
    wanted = tuple(dict.fromkeys(names or DEFAULTS[kind]))
    for name in wanted:
        if reason := refusal(name, kind):
            raise UsageError(f"--to: {reason}")
        if name != AS_IS and TARGETS[name].needs_samples and not has_samples:
            raise UsageError(f"--to {name} is calibrated with real data: give some with --samples")
    return wanted


def plan_of(source: Source, targets: Sequence[str], given: Sequence[tuple[str, str]] = ()) -> Plan:
    """The steps in order, each after what it needs, and the candidates in the order of the targets; `given` are files
    that somebody else has converted, by names of their own."""
    steps: dict[str, Step] = {}
    candidates = [_candidate(name, source, steps) for name in targets]
    return Plan(tuple(steps.values()), (*candidates, *(given_candidate(name, file) for name, file in given)))


def given_candidate(name: str, file: str) -> Candidate:
    """Raises UsageError: no backend serves such a file."""
    suffix = PurePath(file).suffix
    served = {
        PurePath(target.filename).suffix: target for target in TARGETS.values() if target.precision is Precision.FP32
    }
    base, _, word = name.partition(":")
    target = served.get(suffix)
    if target is None and suffix != ".pt":
        raise UsageError(f"--candidate {name}: '{file}' is of no format that is served ({', '.join(served)}, .pt)")
    if word not in ("", *Precision):
        raise UsageError(
            f"--candidate {name}: expected a precision ({', '.join(Precision)}) after the colon, got '{word}'"
        )
    backend, filename = (target.backend, target.filename) if target else ("pytorch", "model.pt")
    return Candidate(base, backend, filename, Precision(word or "fp32"), file)


def _candidate(name: str, source: Source, steps: dict[str, Step]) -> Candidate:
    if name == AS_IS:
        backend, filename = SERVED[source.kind]
        return Candidate(AS_IS, backend, source.filename or filename, Precision.FP32, source.path)
    target = TARGETS[name]
    file = f"made/{name}/{target.filename}"
    if name == ONNX:
        before, file = _onnx(source, steps)
        return Candidate(name, target.backend, target.filename, target.precision, file, before)
    before, made_of = _what_is_read(target, source, steps)
    arguments: dict[str, Any] = {"made_of": made_of, "target": file, "kind": name}
    steps[name] = Step(name, target.makes, arguments, target.packages, before)
    return Candidate(name, target.backend, target.filename, target.precision, file, name, target.is_portable)


def _what_is_read(target: Target, source: Source, steps: dict[str, Step]) -> tuple[str, str]:
    """The step before, and the file that it makes: the source itself where the target is made of that."""
    if target.makes in ("export_torch", "compile_torch"):
        return "", source.path
    if source.kind is SourceKind.SAVED_MODEL and target.backend == "openvino":  # whose converter reads it itself
        return "", source.path
    return _onnx(source, steps)


def _onnx(source: Source, steps: dict[str, Step]) -> tuple[str, str]:
    if source.kind is SourceKind.ONNX:
        return "", source.path
    program, packages = TO_ONNX[source.kind]
    file = f"made/{ONNX}/model.onnx"
    steps.setdefault(ONNX, Step(ONNX, program, {"target": file}, packages))
    return ONNX, file
