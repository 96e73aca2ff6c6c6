"""The words of `trioton serve`, the environment and a configuration file as a server's settings.

Flow: `trioton.cli`, and commands that start servers → [serve_words] → `Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repository.stores.urls import StoreUrl
from trioton.cloud_environment import cloud_defaults, cloud_repository
from trioton.config_file import CONFIG_FLAG, read_config_file
from trioton.debug_delays import debug_delays
from trioton.flags.fields import PATH, Flag, UsageError, filesystem_path, flag, read_environment, read_words, rows
from trioton.flags.server import SERVER
from trioton.flags.store import repository_place
from trioton.folders import folder_of_word, served_folder
from trioton.settings import Settings
from trioton.tools.layout_checks import place_findings

# Triton's own variable: 0 shows log messages as they are, without quotes and escapes.
ESCAPE_VARIABLE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
NO_DEFAULTS: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """What `trioton serve` takes besides a server's settings."""

    served_model_name: str = flag(
        "", str, group=SERVER, metavar="<name>", help="The name of the model in a folder; where absent, the folder's."
    )
    config: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=SERVER,
        metavar=PATH,
        help="A TOML file with flags by their names; the environment and the command line win over it.",
    )


def settings_from(
    arguments: Sequence[str], environment: Mapping[str, str], defaults: Mapping[str, object] = NO_DEFAULTS
) -> Settings:
    """A server's settings from words, environment and the file that either names; flags win over the environment, that
    over the file, and `defaults` stand in for what is not given. Words that are no flags are model repositories, or
    folders of language models.

    Raises:
        UsageError: see `trioton.flags` and `Settings`; a word that is no repository.
    """
    table = serve_table()
    places, given = read_words(table, arguments)
    found = [(word, folder_of_word(word)) for word in places]
    repositories = [_repository(word) for word, folder in found if folder is None]
    if repositories:
        given["model_repository"] = (*repositories, *given.get("model_repository", ()))
    values = {**read_environment(table, environment), **given}
    file = values.pop(CONFIG_FLAG, None)
    if file is not None:
        values = {**read_config_file(table, file), **values}
    values = {**cloud_defaults(table, environment), **values}
    name = values.pop("served_model_name", "")
    folders = [folder for _, folder in found if folder is not None]
    if name and len(folders) != 1:
        raise UsageError(f"--served-model-name is for one folder of a language model, got {len(folders)}")
    served = tuple(served_folder(folder, name) for folder in folders)
    wanted = values.get("load_model", ())
    if values.get("model_control_mode") == "explicit" and "*" not in wanted:
        values["load_model"] = (*wanted, *(model.name for model in served))  # they were asked for by name, too
    if not (found or values.get("model_repository")):
        values["model_repository"] = cloud_repository(table, environment)
    own = {"log_escape": escapes_log(environment), "debug_delays": debug_delays(environment)}
    return Settings(folders=served, **{**own, **defaults, **values})


def serve_table() -> Sequence[Flag]:
    """The flags of `trioton serve`."""
    return (*rows(ServeFlags), *rows(Settings))


def _repository(word: str) -> Path | StoreUrl:
    """Raises UsageError: it is none, so it was perhaps not meant as one."""
    try:
        place = repository_place(word)
    except ValueError as error:
        raise UsageError(f"Unexpected argument: '{word}'; {error}") from None
    if isinstance(place, Path):
        for finding in place_findings(place):
            raise UsageError(f"Unexpected argument: {word}; {finding.text}: {finding.mend}")
    return place


def escapes_log(environment: Mapping[str, str]) -> bool:
    """Whether lines of the log are escaped."""
    return environment.get(ESCAPE_VARIABLE) != "0"
