"""`trioton batch`: runs a model over the rows of an input, in this process.

Flow: words → `BatchJob` → state of an earlier run → `serving` → report and exit code.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from actors.jobs.data.places import Place, files_of, parse_place, reads
from protocol.errors import InvalidArgument, ServerError
from protocol.jobs.source import DataFormat, format_of
from protocol.messages import LATEST_VERSION
from trioton.batch.attempts import ModelUnavailable
from trioton.batch.batching import batched_config
from trioton.batch.flags import BatchFlags
from trioton.batch.places import OutputPlace, States, output_place
from trioton.batch.progress import report
from trioton.batch.serving import BatchJob, Serving
from trioton.batch.state import Identity, State, UnusableState, check_identity
from trioton.flags.fields import Flag, UsageError, read_environment, read_words, rows
from trioton.folders import folder_of_word, served_folder
from trioton.log.server_log import logging_to
from trioton.run import find_run_model
from trioton.server import StartError
from trioton.settings import GROUPS, Settings

# Exit codes. Of a run that was interrupted: 128 and the signal's number.
CANNOT_RUN = 1
ROWS_FAILED = 2

# Groups of a server's flags that mean something here, and flags of them that do not.
_GROUPS = frozenset({"server", "stores", "loading", "gpus", "scheduling", "logging"})
_NOT_HERE = frozenset({"model-control-mode", "repository-poll-secs", "load-model", "exit-on-error"})


def batch_table() -> Sequence[Flag]:
    """The flags of the command."""
    of_server = [row for row in rows(Settings) if GROUPS[row.group] in _GROUPS and row.name not in _NOT_HERE]
    return (*rows(BatchFlags), *of_server)


def run_batch(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the model over the input; answers the exit code, see `docs/batch.md`.

    Raises:
        UsageError: see `trioton.flags` and `Settings`; no such model, formats that nothing tells.
    """
    job = batch_job(words, environment)
    try:
        with logging_to(job.settings):
            return trio.run(_run_job, job)
    except (StartError, ServerError, UnusableState, ModelUnavailable, OSError) as error:
        _say(_text(error))
        return CANNOT_RUN


async def _run_job(job: BatchJob) -> int:
    states = await trio.to_thread.run_sync(job.output.states, job.environment)
    with states.locked():
        state = await trio.to_thread.run_sync(_state, job, states)
        if state.is_complete:
            _say(f"was complete already: {report(job.output, state)}")
            return _exit_code(state)
        if state.done:
            _say(f"goes on after {state.done:,} rows")
        files = await trio.to_thread.run_sync(files_of, job.input, job.input_format, job.environment)
        serving = Serving(job, states, state, files)
        state = await serving.run()
    if serving.signal:
        name = signal.Signals(serving.signal).name
        _say(f"{name}, ended early: {report(job.output, state)}; the same command goes on from there")
        return 128 + serving.signal
    _say(f"done: {report(job.output, state)}")
    return _exit_code(state)


def _state(job: BatchJob, states: States) -> State:
    """Where to begin. Raises UnusableState, ServerError, OSError."""
    if job.flags.restart:
        states.write(State(job.identity))  # before anything of the output goes
        return State(job.identity)
    state = states.read()
    if state is None:
        job.output.check_empty()
        return State(job.identity)
    check_identity(state, job.identity)
    if state.is_running:  # it has died
        return msgspec.structs.replace(state, caution=state.caution.after_crash(state.done))
    return state


def _exit_code(state: State) -> int:
    return ROWS_FAILED if state.failed else 0


def _text(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or 'the output'}: {error.strerror or error}"


def _say(text: str) -> None:
    print(f"trioton batch: {text}", file=sys.stderr)


def batch_job(words: Sequence[str], environment: Mapping[str, str]) -> BatchJob:
    """Raises UsageError."""
    places, given = read_words(batch_table(), words)
    if len(places) != 2:
        raise UsageError(f"trioton batch takes INPUT and OUTPUT, got {len(places)}: {' '.join(places) or 'none'}")
    values = {**read_environment(batch_table(), environment), **given}
    own = {row.field_name for row in rows(BatchFlags)}
    flags = BatchFlags(**{name: value for name, value in values.items() if name in own})
    settings, model = _settings(flags, {name: value for name, value in values.items() if name not in own})
    data_format = _format("INPUT", places[0], flags.format, "--format")
    output_format = DataFormat(flags.output_format) if flags.output_format else format_of(places[1])
    if output_format is DataFormat.IMAGES:
        raise UsageError(f"OUTPUT '{places[1]}' is of no format that results have; give one with --output-format")
    try:
        source, target = map(parse_place, places)
    except InvalidArgument as error:
        raise UsageError(str(error)) from None
    identity = Identity(
        input=str(_absolute(source)),
        output=str(_absolute(target)),
        format=data_format,
        model=model,
        version=flags.version or LATEST_VERSION,
        shard=str(flags.shard),
        limit=flags.limit,
    )
    output = output_place(_absolute(target), output_format or DataFormat.JSON_LINES, flags.shard)
    _check_apart(_absolute(source), data_format, output)
    config = None
    if flags.batch is not None:
        config = batched_config(settings.repositories(settings.stores(environment)), model, flags.batch)
    return BatchJob(flags, settings, model, source, data_format, output, identity, environment, config)


def _check_apart(source: Place, data_format: DataFormat, output: OutputPlace) -> None:
    """Raises UsageError where results would be read as rows, or written over them."""
    folder, names = output.names()
    for name in names:
        is_same = isinstance(source, Path) and isinstance(folder, Path) and _is_same(source, folder / name)
        if is_same or reads(source, data_format, folder, name):
            raise UsageError(
                f"INPUT '{source}' would be read from '{folder}/{name}', which is written: choose another OUTPUT"
            )


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _format(what: str, place: str, given: str, name: str) -> DataFormat:
    found = DataFormat(given) if given else format_of(place)
    if found is None:
        raise UsageError(f"the ending of {what} '{place}' does not tell its format; give it with {name}")
    return found


def _absolute(place: Place) -> Place:
    return Path(os.path.abspath(place)) if isinstance(place, Path) else place


def _settings(flags: BatchFlags, values: dict[str, Any]) -> tuple[Settings, str]:
    """Those of a server that has this model alone and listens nowhere, and the model's name."""
    model = flags.model
    if not model:
        raise UsageError("--model is required: the name of the model that is run")
    chosen: dict[str, Any] = {
        "log_info": False,
        "allow_http": False,
        "allow_grpc": False,
        "allow_metrics": False,
        "exit_on_error": False,  # there is one model; `serving` looks at it
        "exit_timeout_secs": 1,  # what runs has had its time before
        "model_control_mode": "explicit",
        **values,
    }
    if flags.served_model_name and (values.get("model_repository") or folder_of_word(model) is None):
        raise UsageError("--served-model-name is for the folder of a language model")
    if values.get("model_repository"):
        return Settings(load_model=(model,), **chosen), model
    folder = folder_of_word(model)
    if folder is not None:
        served = served_folder(folder, flags.served_model_name)
        return Settings(folders=(served,), load_model=(served.name,), **chosen), served.name
    if not os.path.exists(model):
        raise UsageError(f"--model '{model}' is no directory; for a model of a repository give --model-repository, too")
    directory = find_run_model(Path(model))
    return Settings(model=directory, load_model=(directory.name,), **chosen), directory.name
