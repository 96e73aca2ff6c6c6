"""Reads one model's configuration from its directory.

Flow: model directory -> [loader]: `config.pbtxt` or a load override, then stage 1 of completion -> refusal of what is
not built, normalisation, validation -> the backend's completion.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from protocol.errors import Internal, InvalidArgument, NotFound
from repository.backend_fields import fill_backend_fields
from repository.json_form import from_json_form
from repository.layout import CONFIGS_DIRECTORY, ModelDirectory
from repository.model_config import ModelConfig
from repository.model_folders import ANY_ENGINE, EngineChoice
from repository.pbtxt import parse_pbtxt
from repository.validation_paths import validate_paths


def read_config(
    directory: ModelDirectory,
    *,
    override: str | None = None,
    auto_complete: bool = True,
    config_name: str = "",
    engines: EngineChoice = ANY_ENGINE,
) -> ModelConfig:
    """The configuration of a model as far as it is known without loading it.

    Args:
        override: a configuration as JSON text, in place of the file.
        auto_complete: whether a model may come without a configuration file.
        config_name: take `configs/<name>.pbtxt` in the model's directory, where that is there.
        engines: which engine runs a folder of a language model that names none.

    Raises:
        InvalidArgument: the configuration cannot be parsed (with file, line and column), names another model,
            has a path with a NUL, or leaves open which backend the model is for.
        NotFound: there is no configuration and no completion, or no such model directory.
        Internal: the file cannot be read.
    """
    given = _read_file(config_file(directory, config_name)) if override is None else from_json_form(override)
    if given is None:
        if not auto_complete:
            raise NotFound(f"model configuration is not provided for model '{directory.name}'")
        given = ModelConfig()
    if given.name not in ("", directory.name, directory.own_name):
        raise InvalidArgument(
            f"unexpected directory name '{directory.name}' for model '{given.name}', "
            "directory name must equal model name"
        )
    given = msgspec.structs.replace(given, name=directory.name)
    validate_paths(given)
    return fill_backend_fields(given, directory, engines)


def config_file(directory: ModelDirectory, config_name: str = "") -> Path:
    """The file that has a model's configuration. It may not be there."""
    if config_name:
        custom = directory.path / CONFIGS_DIRECTORY / f"{config_name}.pbtxt"
        if custom.is_file():
            return custom
    return directory.config_file


def _read_file(path: Path) -> ModelConfig | None:
    """The parsed file, or None where there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as exc:
        raise InvalidArgument(f"{path}: byte {exc.start} is not UTF-8 text: {exc.reason}") from None
    except OSError as exc:
        raise Internal(f"failed to read model configuration '{path}': {exc.strerror}") from None
    return parse_pbtxt(text, source=str(path))
