"""`trioton convert`: converts a model, and writes the fastest that is proven equal into a repository.

Flow: words → `Wanted` → `conversion` → a repository entry, report and exit code.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from protocol.errors import ServerError
from repository.model_config import ModelConfig
from trioton.convert.conversion import CannotConvert, Conversion, Wanted
from trioton.convert.entry import PROVENANCE, VERSION
from trioton.convert.flags import ConvertFlags
from trioton.convert.packages import how_to_install, missing
from trioton.convert.page import page_of
from trioton.convert.plan import Plan, plan_of, wanted_targets
from trioton.convert.processes import Limits, Processes
from trioton.convert.report import Report, as_json, as_text
from trioton.convert.sources import find_source
from trioton.flags.fields import Flag, UsageError
from trioton.flags.store import local_path
from trioton.tools.adding import Added, add_model
from trioton.tools.flags import ToolFlags, parse_words, tool_table
from trioton.tools.model_sources import GivenModel
from trioton.tools.quiet import without_log

# Exit codes, besides 0 for a model that is written.
CANNOT_RUN, NONE_PASSED, NONE_KEEPS_THE_BOUND, NOT_ALL_PASSED = 1, 2, 3, 4

_MARK = "trioton-convert"
_DEFAULT_CONCURRENCY = (1, 4, 16)
_SHARE_OF_MEMORY = 0.75


def convert_table() -> tuple[Flag, ...]:
    return tool_table(ConvertFlags)


def run_convert(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Convert, judge, measure and write; answers the exit code, see `docs/convert.md`.

    Raises:
        UsageError: see `trioton.flags`; the source, samples or targets are not what they must be.
    """
    parsed = parse_words(ConvertFlags, words, environment)
    flags = ConvertFlags(**parsed.own)
    if len(parsed.places) != 2:
        places = " ".join(parsed.places) or "none"
        raise UsageError(f"trioton convert takes a source and a repository, got {len(parsed.places)}: {places}")
    wanted = _wanted(parsed.places[0], flags, shlex.join(["trioton", "convert", *words]))
    repository = local_path(parsed.places[1])
    if (repository / wanted.model).exists() and not flags.force:
        raise UsageError(f"model '{wanted.model}' is in the repository already; --force replaces it")
    work = (flags.work or Path(f"{wanted.model}.convert")).absolute()
    _prepare_work(work)
    conversion = Conversion(wanted, work, Processes(work, _limits(flags)), _say)
    try:
        report = conversion.run()
        code = _code(report, must_all_pass=flags.all_must_pass)
        if code == 0:
            _write(repository, conversion.entry(report.chosen), report, parsed.tool, replaces=flags.force)
    except (CannotConvert, ServerError, OSError) as error:
        _say(str(error))
        return CANNOT_RUN
    text = as_text(report)
    (work / "report.json").write_text(json.dumps(as_json(report), indent=2))
    (work / "report.txt").write_text(f"{text}\n")
    (work / "report.html").write_text(page_of(report).html(), encoding="utf-8")
    print(json.dumps(as_json(report), indent=2) if flags.json else text)
    if code == NOT_ALL_PASSED:
        _say("nothing is written, for not all candidates have passed (--all-must-pass)")
    if code == 0 and not flags.json:
        print(f"added '{report.model}': {repository / report.model}\nserve it: trioton serve {repository}")
    if not flags.json:
        print(f"report: {work / 'report.html'}")
    return code


def _wanted(word: str, flags: ConvertFlags, command: str) -> Wanted:
    source = find_source(word)
    targets = wanted_targets(flags.to, source.kind, has_samples=bool(flags.samples))
    plan = plan_of(source, targets, flags.candidate)
    if flags.to:
        _check_installed(plan)
    names = [candidate.name for candidate in plan.candidates]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--candidate: there is a candidate '{name}' already")
    overrides = {"error": flags.tolerance, "cosine": flags.cosine, "top1": flags.top1}
    return Wanted(
        model=flags.name or source.name,
        source=source,
        plan=plan,
        inputs=flags.input,
        samples=[path.absolute() for path in flags.samples],
        max_batch_size=flags.max_batch_size,
        check=_check_file(flags.check),
        overrides={name: value for name, value in overrides.items() if value is not None},
        bound=flags.latency,
        concurrency=flags.concurrency or _DEFAULT_CONCURRENCY,
        load_seconds=flags.load_secs,
        command=command,
    )


def _check_installed(plan: Plan) -> None:
    """Of what was asked for by name. Raises UsageError."""
    for step in plan.steps:
        if lacking := missing(step.packages):
            raise UsageError(f"--to: {step.name} needs what is {how_to_install(lacking)}")


def _check_file(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise UsageError(f"--check: '{path}' is no file")
    return None if path is None else path.absolute()


def _prepare_work(work: Path) -> None:
    """An empty folder; that of an earlier conversion is removed. Raises UsageError."""
    if work.exists():
        if not (work / _MARK).is_file():
            raise UsageError(f"--work: '{work}' is there already, and is not of an earlier conversion")
        shutil.rmtree(work)
    work.mkdir(parents=True)
    (work / _MARK).touch()


def _limits(flags: ConvertFlags) -> Limits:
    if flags.step_memory_mb is not None:
        return Limits(flags.step_secs, flags.step_memory_mb << 20)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limits(flags.step_secs, int(memory * _SHARE_OF_MEMORY))


def _code(report: Report, *, must_all_pass: bool) -> int:
    if must_all_pass and report.not_passed:
        return NOT_ALL_PASSED
    if report.chosen:
        return 0
    return NONE_KEEPS_THE_BOUND if any(outcome.is_passed for outcome in report.outcomes) else NONE_PASSED


def _write(repository: Path, entry: Path, report: Report, flags: ToolFlags, *, replaces: bool) -> Added:
    """Raises UsageError, ServerError, OSError."""
    provenance = json.dumps(provenance_of(report), indent=2)
    (entry / VERSION / PROVENANCE).write_text(f"{provenance}\n")
    files = {each.name: each for each in entry.iterdir()}
    given = GivenModel(report.model, (int(VERSION),), files, ModelConfig())
    with without_log():
        return trio.run(lambda: add_model(repository, given, flags, replaces=replaces))


def provenance_of(report: Report) -> dict[str, Any]:
    """What the model was made of, how, and what was proven of it."""
    whole = as_json(report)
    chosen = next(each for each in whole["outcomes"] if each["name"] == report.chosen)
    return {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": {
            "path": report.source,
            "kind": report.kind,
            "sha256": next(iter(report.source_files.values())),
            "files": report.source_files,
        },
        "format": report.chosen,
        "precision": chosen["precision"],
        "is_proven": report.is_proven,
        "data": report.samples,
        "reference": report.reference,
        "cases": whole["cases"],
        "tolerance": chosen["tolerance"],
        "measured": chosen["measured"],
        "versions": chosen["versions"],
        "environment": report.environment,
        "bound": whole["bound"],
        "candidates": whole["outcomes"],
    }


def _say(text: str) -> None:
    print(f"trioton convert: {text}", file=sys.stderr)
