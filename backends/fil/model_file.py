"""Forest model files: location, format detection and loading.

Reading a pickle runs what it holds, so the server's operator must have allowed it; the other files are data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import treelite

from backends.fil.options import ForestOptions
from backends.interface import ModelSource
from backends.parameters import parse_bool
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable, Unsupported

ALLOW_PICKLE = "allow-pickle"

_ZERO = 1  # of LightGBM's kinds of missing values

_Read = Callable[[ModelSource, Path, ForestOptions], treelite.Model]


@dataclass(frozen=True, slots=True)
class FileKind:
    """A value of `model_type`, the default name of such a file, and how it is read."""

    model_type: str
    filename: str
    read: _Read


def read_model(source: ModelSource, options: ForestOptions) -> treelite.Model:
    """The model in the file of this version.

    Raises:
        Unavailable: there is no such file, or a package that its pickle needs is not installed.
        Unsupported: `model_type` is not known.
        InvalidArgument: it is a pickle, and pickles are not allowed.
        Internal: the library cannot read it; with the library's words.
    """
    kind, path = _find(source, options.model_type)
    if not path.is_file():
        raise Unavailable(f"unable to find '{path}' for model instance '{source.name}'")
    try:
        return kind.read(source, path, options)
    except ServerError:
        raise
    except Exception as error:  # whatever a pickle raises, too
        raise Internal(
            f"failed to load model '{source.name}': '{path.name}' cannot be read as {kind.model_type}: {_words(error)}"
        ) from error


def _find(source: ModelSource, model_type: str) -> tuple[FileKind, Path]:
    """What is given decides; without `model_type` the file that is there, or the suffix of the one that is named."""
    named, folder = source.config.default_model_filename, source.version_directory
    if model_type:
        kind = next((each for each in KINDS if each.model_type == model_type), None)
        if kind is None:
            known = ", ".join(each.model_type for each in KINDS)
            raise Unsupported(
                f"model '{source.name}', parameter 'model_type': {model_type} not recognized as a valid serialization "
                f"format. Expected one of {known}."
            )
        return kind, folder / (named or kind.filename)
    if named:
        suffix = Path(named).suffix
        return next((each for each in KINDS if Path(each.filename).suffix == suffix), KINDS[0]), folder / named
    kind = next((each for each in KINDS if (folder / each.filename).is_file()), KINDS[0])
    return kind, folder / kind.filename


def _read_xgboost(source: ModelSource, path: Path, options: ForestOptions) -> treelite.Model:
    """The old binary format, or one of the two that XGBoost writes today: it takes any name for each."""
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"{L":  # a length in UBJSON's numbers
        return _read_ubjson(source, path, options)
    if start[:1] == b"{":
        return _read_json(source, path, options)
    return treelite.frontend.load_xgboost_model_legacy_binary(path)


def _read_json(source: ModelSource, path: Path, options: ForestOptions) -> treelite.Model:
    return treelite.frontend.load_xgboost_model(
        path, format_choice="json", allow_unknown_field=options.allows_unknown_fields
    )


def _read_ubjson(source: ModelSource, path: Path, options: ForestOptions) -> treelite.Model:
    return treelite.frontend.load_xgboost_model(
        path, format_choice="ubjson", allow_unknown_field=options.allows_unknown_fields
    )


def _read_lightgbm(source: ModelSource, path: Path, options: ForestOptions) -> treelite.Model:
    if _has_missing_zeros(path):
        raise Unsupported(
            f"model '{source.name}': '{path.name}' was trained with zero_as_missing, and such splits cannot be served; "
            f"train with missing values as NaN"
        )
    return treelite.frontend.load_lightgbm_model(path)


def _has_missing_zeros(path: Path) -> bool:
    """Whether a split takes zeros for missing values: the library would read it, and compare them as numbers."""
    with path.open(errors="replace") as file:
        for line in file:
            key, _, values = line.partition("=")
            if key == "decision_type" and any(_missing_type(value) == _ZERO for value in values.split()):
                return True
    return False


def _missing_type(decision: str) -> int:
    """The kind of missing value in LightGBM's bits for a split; 0 is none, 1 zero, 2 NaN."""
    return int(decision) >> 2 & 3 if decision.isdigit() else 0


def _read_checkpoint(source: ModelSource, path: Path, options: ForestOptions) -> treelite.Model:
    return treelite.Model.deserialize(path)


def _read_pickle(source: ModelSource, path: Path, options: ForestOptions) -> treelite.Model:
    allowed = source.settings.get(ALLOW_PICKLE, "false")
    if not parse_bool(allowed, place=f"model '{source.name}', backend-config '{ALLOW_PICKLE}'"):
        raise InvalidArgument(
            f"model '{source.name}': '{path.name}' is a pickle, and whoever wrote a pickle can run any code in the "
            f"server that reads it. The operator allows them with --backend-config=fil,{ALLOW_PICKLE}=true where every "
            f"file of the repository is trusted. A treelite checkpoint needs no trust: "
            f"treelite.sklearn.import_model(model).serialize('checkpoint.tl')"
        )
    try:
        import joblib
        import treelite.sklearn

        estimator: Any = joblib.load(path)  # reads plain pickles, too
    except ImportError as error:
        raise Unavailable(
            f"model '{source.name}' is a pickle that needs the Python package '{error.name}' ({error}): "
            f"pip install scikit-learn, of the version that wrote it"
        ) from error
    return treelite.sklearn.import_model(estimator)


# In the order in which the files are looked for; the first is Triton's default.
KINDS = (
    FileKind("xgboost", "xgboost.model", _read_xgboost),
    FileKind("xgboost_json", "xgboost.json", _read_json),
    FileKind("xgboost_ubj", "xgboost.ubj", _read_ubjson),
    FileKind("lightgbm", "model.txt", _read_lightgbm),
    FileKind("treelite_checkpoint", "checkpoint.tl", _read_checkpoint),
    FileKind("sklearn_pickle", "model.pkl", _read_pickle),
)

# Before the library's own words: when, and where in its sources.
_ORIGIN = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


def _words(error: Exception) -> str:
    first, *more = str(error).strip().split("\n")
    text = _ORIGIN.sub("", first)
    if text.endswith(": ") and more:
        text += more[0]
    return text or type(error).__name__
