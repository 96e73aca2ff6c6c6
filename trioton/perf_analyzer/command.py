"""`trioton perf-analyzer`: measures by perf_analyzer's options, and writes its reports.

Exit codes are the original's: 0 good, 2 not stable, 99 for everything else.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from protocol.errors import ServerError
from trioton.perf.caller import Control, DataError, ModelDescription, TargetError
from trioton.perf.sender import control_of, open_sender, unwrapped
from trioton.perf_analyzer.csv_report import CsvSettings, composing_reports, csv_report
from trioton.perf_analyzer.levels import search
from trioton.perf_analyzer.options import OptionError, Options
from trioton.perf_analyzer.parsing import parse
from trioton.perf_analyzer.printed import (
    FAILED,
    level_text,
    profile_text,
    settings_text,
    summary_text,
    unstable_text,
)
from trioton.perf_analyzer.profile import Profile
from trioton.perf_analyzer.profile_export import export_pieces
from trioton.perf_analyzer.trials import Bench, MeasurementFailed, NotStable
from trioton.perf_analyzer.windows import Rules
from trioton.perf_analyzer.wiring import data_of, gaps_of, level_of_gaps, load_of, metrics_target, target_of
from trioton.version import version_text

GOOD, NOT_STABLE, FAILURE = 0, 2, 99
TERMINATED = 128 + signal.SIGTERM


def run_perf_analyzer(words: Sequence[str]) -> int:
    """Measure and report; answers the exit code."""
    if "--version" in words:
        _warn(f"Perf Analyzer of {version_text()}")
        return GOOD
    try:
        options = parse(words)
        for note in options.notes:
            _warn(f"WARNING: {note}")
        return trio.run(_run_until_terminated, options)
    except OptionError as error:
        _warn(f"{error}\nSee trioton perf-analyzer --help and docs/perf-analyzer.md.")
    except (TargetError, DataError, ServerError, MeasurementFailed, OSError) as error:
        _warn(f"error: {error}")
    return FAILURE


@dataclass(slots=True)
class _Outcome:
    profiles: list[Profile] = field(default_factory=list)
    unstable: int = 0


async def _run_until_terminated(options: Options) -> int:
    """SIGTERM ends the measurement, and what the server was told of shared memory is taken back."""
    code = TERMINATED
    with trio.open_signal_receiver(signal.SIGTERM) as signals, unwrapped():
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await anext(signals)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            code = await _run(options)
            nursery.cancel_scope.cancel()
    return code


async def _run(options: Options) -> int:
    target = target_of(options)
    control = control_of(target)
    description = await _described(control)
    _say(settings_text(options), "")
    gaps = await trio.to_thread.run_sync(gaps_of, options, description)
    if options.is_scheduled:  # each entry once, as one window
        options = replace(options, request_count=len(gaps))
    metrics = control_of(metrics_target(options)) if options.collects_metrics else None
    outcome = _Outcome()
    async with open_sender(target, description, data_of(options, description), control) as generator:
        bench = Bench(options, description, generator, control, metrics)
        if gaps:
            await _measure(bench, level_of_gaps(gaps), gaps, outcome)
        else:
            await _search(bench, outcome)
    await trio.to_thread.run_sync(_write, options, outcome.profiles)
    if outcome.profiles:
        _say(summary_text(outcome.profiles, options))
    elif outcome.unstable:
        _warn(FAILED)
        return NOT_STABLE
    return GOOD


async def _described(control: Control) -> ModelDescription:
    try:
        return await control.describe()
    except TargetError as error:
        raise TargetError(f"failed to get model metadata: {error}") from None


async def _search(bench: Bench, outcome: _Outcome) -> None:
    """Measure level by level until the range or the latency limit ends it."""
    levels = search(bench.options)
    level: float | None = next(levels)
    while level is not None:
        is_within = await _measure(bench, level, (), outcome)
        try:
            level = levels.send(is_within)
        except StopIteration:
            level = None


async def _measure(bench: Bench, level: float, gaps: Sequence[float], outcome: _Outcome) -> bool:
    """Measure one level; answers whether it is within the latency limit. One that is not is not reported."""
    options = bench.options
    if text := level_text(options, level):
        _say(text)
    try:
        profile = await bench.profile(level, load_of(options, level, gaps))
    except NotStable:
        _warn(unstable_text(options, level))
        outcome.unstable += 1
        return True
    if Rules.of(options).is_over_limit(profile.figures):
        _warn(f"Measured latency went over the set limit of {options.latency_limit * 1000:.0f} msec.")
        return False
    outcome.profiles.append(profile)
    _say(profile_text(profile, options, options.is_grpc))
    return True


def _write(options: Options, profiles: Sequence[Profile]) -> None:
    """The files that were asked for. Raises OSError."""
    if options.csv is not None and profiles:
        settings = CsvSettings(
            is_verbose=options.has_verbose_csv, percent=options.percent, has_metrics=options.collects_metrics
        )
        options.csv.write_text(csv_report(profiles, settings))
        for (model, version), text in composing_reports(profiles).items():
            composing = Path(f"{model}_v{version}.{options.csv.name}".replace("/", "_"))
            options.csv.with_name(composing.name).write_text(text)
    if options.export is not None and profiles:
        with options.export.open("xb") as file:
            file.writelines(export_pieces(profiles, options))


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
