"""`trioton run`: serves one model, for the person who develops it.

Flow: words → [run]: which directory is the model, and settings that suit a person at work → `trioton.process`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.python.settings import debugger
from protocol.errors import ServerError
from repository.backend_fields import MODEL_FORMS
from repository.layout import CONFIG_FILE, ModelDirectory, find_models, first_version_directory
from repository.model_folders import is_bare_model
from repository.pbtxt import parse_pbtxt
from trioton.debug_delays import debug_delays
from trioton.flags.fields import Flag, UsageError, flag, read_environment, read_words, rows, switch
from trioton.flags.server import BackendSetting
from trioton.flags.store import local_path
from trioton.settings import RUN, Settings

# Flags of a server of whole repositories: here the model is the command's argument.
_NOT_HERE = frozenset({"model-repository", "model-control-mode", "repository-poll-secs", "load-model"})
_EXPECTED = f"expected {CONFIG_FILE}, a version directory such as 1, or a model file such as model.py or model.onnx"
LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """What `trioton run` takes besides a server's flags."""

    reload: bool = switch(group=RUN, help="Load the model again whenever its files change.")
    debug: str = flag(
        "",
        debugger,
        group=RUN,
        metavar="{pdb,debugpy[:<port>]}",
        help="pdb: `breakpoint()` in a model.py opens a port for nc or telnet, which the log names. debugpy: each "
        "worker waits for a debugger to attach before it initializes the model.",
    )


def run_table() -> tuple[Flag, ...]:
    """The flags of the command."""
    return (*rows(RunFlags), *(row for row in rows(Settings) if row.name not in _NOT_HERE))


def run_settings(words: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from the command's words, of which one is the model's directory, and the environment.

    The server listens on this machine alone if nothing else is said. With `--reload` it also starts with a model that
    does not load.

    Raises:
        UsageError: see `trioton.flags`, `Settings` and `find_run_model`.
    """
    table = run_table()
    places, given = read_words(table, words)
    if len(places) != 1:
        raise UsageError(f"trioton run takes one model directory, got {len(places)}: {' '.join(places) or 'none'}")
    values = {**read_environment(table, environment), **given}
    model = find_run_model(local_path(places[0]))
    chosen: dict[str, Any] = {
        "http_address": LOCAL,
        "grpc_address": LOCAL,
        "exit_on_error": not values.get("reload", False),
        "debug_delays": debug_delays(environment),
        **values,
    }
    if debug := chosen.pop("debug", ""):
        setting = BackendSetting("python", "debugger", debug)
        chosen["backend_config"] = (*chosen.get("backend_config", ()), setting)
    return Settings(model=model, model_control_mode="explicit", load_model=(model.name,), **chosen)


def find_run_model(given: Path) -> ModelDirectory:
    """The model that a person means by a path: its directory, with or without version directories, one of these, or a
    file in it. Its name is that of its configuration, or the directory's.

    Raises:
        UsageError: there is no model; the text says what was expected, and what seems to be there instead.
    """
    path = Path(os.path.abspath(given))
    if os.path.isfile(path):  # unlike the methods of Path this never raises
        names = sorted({CONFIG_FILE, *(form.filename for form in MODEL_FORMS if form.can_be_file)})
        if path.name not in names:
            raise UsageError(f"'{given}' is no model file: expected {', '.join(names)}, or the directory of one")
        path = path.parent
    if not os.path.isdir(path):
        raise UsageError(f"'{given}' is no directory; {_EXPECTED} in it")
    if _is_version(path):
        path = path.parent
    config = path / CONFIG_FILE
    directory = ModelDirectory(_configured_name(config) or path.name, path, path.parent)
    if first_version_directory(directory) is not None:
        return directory
    if config.is_file() or is_bare_model(path) or any(form.is_in(path) for form in MODEL_FORMS):
        return ModelDirectory(directory.name, path, path.parent, is_flat=True)
    models = [model for model in find_models((path,)).models.values() if _looks_like_model(model)]
    if models:
        raise UsageError(
            f"'{given}' is a repository of models ({', '.join(model.name for model in models)}); serve all with "
            f"trioton serve --model-repository={given}, or run one: trioton run {given / models[0].name}"
        )
    raise UsageError(f"'{given}' has no model in it; {_EXPECTED}")


def _is_version(path: Path) -> bool:
    """Whether it is a version directory of the model around it."""
    return path.name.isdigit() and any(form.is_in(path) for form in MODEL_FORMS)


def _looks_like_model(directory: ModelDirectory) -> bool:
    return directory.config_file.is_file() or first_version_directory(directory) is not None


def _configured_name(config: Path) -> str:
    """A configuration that cannot be read has no name; loading it says what is wrong."""
    try:
        return parse_pbtxt(config.read_text(encoding="utf-8"), source=str(config)).name
    except (OSError, UnicodeDecodeError, ServerError):
        return ""
