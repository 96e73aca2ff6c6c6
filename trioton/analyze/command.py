"""`trioton analyze`: finds a model's configuration, proposes one for a running server, or applies a result.

Flow: words → `Job` → `analysis`, or `live`, or a result → `results.configs`
"""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import trio

from protocol.errors import ServerError
from repository.layout import CONFIG_FILE, ModelDirectory, find_models
from trioton.analyze.analysis import RESULT, CannotAnalyze, Job, analyze, command_text, say
from trioton.analyze.bench.http_client import CallFailed
from trioton.analyze.bench.server import ServerFailed
from trioton.analyze.flags import OPTUNA, AnalyzeFlags
from trioton.analyze.journal import JOURNAL
from trioton.analyze.results.configs import difference, write_config
from trioton.analyze.results.findings import DEFAULT_NAME, Findings, read_json
from trioton.analyze.results.texts import as_text
from trioton.flags.fields import Flag, UsageError, read_environment, read_words, rows
from trioton.flags.store import local_path
from trioton.perf.caller import DataError, TargetError

CANNOT_RUN, NONE_KEEPS_THE_BOUND = 1, 3
APPLY = "apply"


def analyze_table() -> Sequence[Flag]:
    return rows(AnalyzeFlags)


def run_analyze(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Analyze, propose or apply; answers the exit code, see `docs/analyze.md`.

    Raises:
        UsageError: see `trioton.flags`; no such model, flags that do not go together.
    """
    places, given = read_words(analyze_table(), words)
    flags = AnalyzeFlags(**{**read_environment(analyze_table(), environment), **given})
    if places and places[0] == APPLY:
        return _apply(places[1:], flags)
    try:
        if flags.live:
            from trioton.analyze.live.command import run_live

            return run_live(places, flags)
        return _analyze(places, flags, list(words))
    except (CannotAnalyze, ServerFailed, CallFailed, DataError, TargetError, ServerError, OSError) as error:
        say(str(error))
        return CANNOT_RUN


def _analyze(places: Sequence[str], flags: AnalyzeFlags, words: list[str]) -> int:
    if flags.model_analyzer_config is not None:
        from trioton.analyze.model_analyzer import read_model_analyzer

        place, flags = read_model_analyzer(flags.model_analyzer_config, flags)
        places = [place, *places]
    if len(places) != 1:
        raise UsageError(f"trioton analyze takes one model repository, got {len(places)}: {' '.join(places) or 'none'}")
    _check(flags)
    directory = _directory(local_path(places[0]), flags.model)
    folder = (flags.output or Path(f"{directory.name}.analysis")).absolute()
    job = Job(directory=directory, flags=replace(flags, restart=False), folder=folder, command=command_text(words))
    with _folder(folder, restart=flags.restart):
        findings = trio.run(analyze, job, say)
    print(msgspec.json.encode(findings).decode() if flags.json else _text(findings, folder))
    return 0 if any(each.rate is not None for each in findings.candidates) else NONE_KEEPS_THE_BOUND


def _text(findings: Findings, folder: Path) -> str:
    return f"{as_text(findings)}\nreport: {folder / 'report.html'}\napply it: trioton analyze apply {folder} --write"


def _check(flags: AnalyzeFlags) -> None:
    if not flags.model:
        raise UsageError("--model is required: the name of the model that is analyzed")
    if flags.latency is None and flags.objective != "latency":
        raise UsageError(f"--latency is required with the objective {flags.objective}, such as --latency=p99:20ms")
    if flags.rate and flags.objective == "throughput":
        raise UsageError("--rate is for the objectives latency and memory; for throughput it is what is looked for")
    if flags.search == OPTUNA:
        from trioton.analyze.search.optuna_plan import check_installed

        check_installed()
    for given, name in ((flags.trace_file, "--trace-file"), (flags.verify, "--verify")):
        if given is not None:
            raise UsageError(f"{name} goes with --live")


def _directory(repository: Path, model: str) -> ModelDirectory:
    found = find_models((repository.absolute(),)).models.get(model)
    if found is None:
        raise UsageError(f"there is no model '{model}' in {repository}")
    return found


@contextmanager
def _folder(folder: Path, *, restart: bool) -> Iterator[None]:
    """The folder of the results, held by one process at a time."""
    if folder.exists() and any(folder.iterdir()) and not (folder / JOURNAL).exists() and not _is_ours(folder):
        raise UsageError(f"--output: '{folder}' has files that are of no analysis")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--output: another process is working in '{folder}'") from None
        if restart:
            for each in folder.iterdir():
                if each.name != "lock":
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
        yield


def _is_ours(folder: Path) -> bool:
    return {each.name for each in folder.iterdir()} <= {"lock", "server.log"}


def _apply(places: Sequence[str], flags: AnalyzeFlags) -> int:
    """Print the difference; with --write make it."""
    if len(places) != 1:
        raise UsageError(f"trioton analyze apply takes the folder of one analysis, got {len(places)}")
    folder = local_path(places[0])
    try:
        findings = read_json(folder / RESULT)
    except OSError as error:
        raise UsageError(f"'{folder / RESULT}', the result of an analysis, cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"'{folder / RESULT}' is no result of an analysis: {error}") from None
    if flags.candidate:
        findings = msgspec.structs.replace(findings, config_after=_candidate_text(findings, folder, flags.candidate))
    path = Path(findings.repository) / findings.model / CONFIG_FILE
    lines = difference(findings, path)
    if not lines:
        say(f"{path} is as it is proposed")
        return 0
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if flags.write:
        write_config(findings.config_after, path)
        say(f"wrote {path}")
    return 0


def _candidate_text(findings: Findings, folder: Path, name: str) -> str:
    # In the order of their files, the default's first.
    names = [each.name for each in findings.candidates if each.rate is not None or each.name == DEFAULT_NAME]
    if name not in names:
        raise UsageError(f"--candidate: there is no candidate '{name}'; there are {'; '.join(names)}")
    files = sorted((folder / "configs").iterdir())
    return files[names.index(name)].read_text(encoding="utf-8")
