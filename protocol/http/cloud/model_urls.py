"""Model URLs: the folders that SageMaker asks to have loaded, as repositories with a name for one of their models.

Source: Triton's SageMaker endpoint. Reads directories and configurations; blocks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from protocol.core import ModelRepository
from protocol.errors import InvalidArgument

DEFAULT_ROOT = Path("/opt/ml/models")

CONFIG_FILE = "config.pbtxt"
_FORBIDDEN = ("/dev/", "/proc/", "/sys/")
_NAME = "[0-9A-Za-z._]+"
_ENSEMBLE = re.compile(r"""(?m)^[^#\n]*(\bplatform\s*:\s*["']ensemble["']|\bensemble_scheduling\s*:?\s*\{)""")


def served_name(target: str) -> str:
    """The name that a model is served under: that of the target model, whose path in a bucket has slashes."""
    return target.replace("/", "_")


def checked_url(url: str, root: Path) -> Path:
    """The folder that a load names, `<root>/<name>/model` or one in it.

    Raises:
        InvalidArgument: it has another form.
    """
    path = os.path.normpath(url)
    if f"{path}/".startswith(_FORBIDDEN):
        raise InvalidArgument(f"Invalid \"url\" '{url}': paths under /dev, /proc and /sys are not allowed")
    form = rf"{re.escape(str(root))}/{_NAME}/model(/{_NAME})?"
    if not re.fullmatch(form, path) or path.endswith(("/.", "/..")):
        raise InvalidArgument(f"Invalid \"url\" '{url}': expected a path of the form {root}/<hash>/model[/<subdir>]")
    return Path(path)


def repository_of(url: Path, name: str) -> ModelRepository:
    """The repository to be registered for a folder, in which one model is served under `name`: the folder itself where
    that is a model; else the only one in it, or of several the ensemble.

    Raises:
        InvalidArgument: there is no such folder, or no such model.
    """
    try:
        folders = sorted(entry.name for entry in os.scandir(url) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise InvalidArgument(f"Invalid \"url\" '{url}': {error.strerror}") from None
    if (url / CONFIG_FILE).is_file() or (folders and all(map(str.isdecimal, folders))):
        return ModelRepository(str(url.parent), {url.name: name})
    if not folders:
        raise InvalidArgument(f"no model is found in '{url}': expected {CONFIG_FILE}, or the folder of a model")
    if len(folders) > 1:
        ensembles = [folder for folder in folders if _is_ensemble(url / folder / CONFIG_FILE)]
        if len(ensembles) != 1:
            raise InvalidArgument(
                f"'{url}' has the models {', '.join(folders)}, of which exactly one has to be an ensemble, "
                f"got {len(ensembles)}"
            )
        folders = ensembles
    return ModelRepository(str(url), {folders[0]: name})


def _is_ensemble(config: Path) -> bool:
    try:
        return _ENSEMBLE.search(config.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False
