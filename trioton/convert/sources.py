"""Kinds of sources that can be converted, told by a path."""

from __future__ import annotations

import enum
import zipfile
from pathlib import Path

import msgspec

from trioton.flags.fields import UsageError
from trioton.tools.file_kinds import forest_filename
from trioton.tools.model_sources import name_of


class SourceKind(enum.StrEnum):
    MODULE = "torch module"
    TORCH_SCRIPT = "TorchScript"
    EXPORTED = "torch.export"
    HUGGING_FACE = "Hugging Face"
    ONNX = "ONNX"
    SAVED_MODEL = "SavedModel"
    SKLEARN = "scikit-learn"
    XGBOOST = "XGBoost"
    LIGHTGBM = "LightGBM"
    TREELITE = "treelite"


TORCH_KINDS = frozenset({SourceKind.MODULE, SourceKind.TORCH_SCRIPT, SourceKind.EXPORTED, SourceKind.HUGGING_FACE})
FOREST_KINDS = frozenset({SourceKind.XGBOOST, SourceKind.LIGHTGBM, SourceKind.TREELITE})
_FORESTS = {
    "xgboost.json": SourceKind.XGBOOST,
    "xgboost.ubj": SourceKind.XGBOOST,
    "xgboost.model": SourceKind.XGBOOST,
    "model.txt": SourceKind.LIGHTGBM,
    "checkpoint.tl": SourceKind.TREELITE,
}
_PICKLES = (".pkl", ".pickle", ".joblib")
_SOURCES = (
    "<file>.py:<name>, .pt, .pt2, .onnx, .pkl and .joblib of scikit-learn, files of XGBoost, LightGBM and treelite, "
    "folders of TensorFlow's SavedModel and of Hugging Face"
)


class Source(msgspec.Struct, frozen=True):
    """What is converted. `factory` is the name in `module.py:name`; `filename` is what the backend that serves it as it
    is calls such a file, where that depends on what is in it. Both are empty for other kinds."""

    kind: SourceKind
    path: str
    factory: str = ""
    filename: str = ""

    @property
    def name(self) -> str:
        """A model's name by that of its file or folder. Raises UsageError: it tells none."""
        return name_of(Path(self.path))


def find_source(word: str) -> Source:
    """Raises UsageError: there is no such file, or it is of no kind that is known."""
    path, colon, factory = word.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file() or not factory.isidentifier():
            raise UsageError(f"'{word}': expected <file>.py:<function or class that makes a torch.nn.Module>")
        return Source(SourceKind.MODULE, str(Path(path).absolute()), factory)
    place = Path(word)
    if place.is_dir():
        return Source(_kind_of_folder(place), str(place.absolute()))
    if not place.is_file():
        raise UsageError(f"'{word}' is neither a file nor a folder that can be converted")
    if filename := forest_filename(place):
        return Source(_FORESTS[filename], str(place.absolute()), filename=filename)
    return Source(_kind_of_file(place), str(place.absolute()))


def _kind_of_file(path: Path) -> SourceKind:
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return SourceKind.ONNX
    if suffix in (".pt", ".pt2"):
        return _kind_of_torch_file(path)
    if suffix in _PICKLES:
        return SourceKind.SKLEARN
    if suffix == ".py":
        raise UsageError(f"'{path}': say which function or class makes the module: {path}:<name>")
    raise UsageError(f"'{path}' is none of the sources: {_SOURCES}")


def _kind_of_folder(path: Path) -> SourceKind:
    if (path / "saved_model.pb").is_file():
        return SourceKind.SAVED_MODEL
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return SourceKind.HUGGING_FACE
    raise UsageError(
        f"'{path}' is a folder of neither TensorFlow (saved_model.pb) nor Hugging Face (config.json and .safetensors)"
    )


def _kind_of_torch_file(path: Path) -> SourceKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile:
        names = set()
    if "constants.pkl" in names:
        return SourceKind.TORCH_SCRIPT
    if any(name.startswith("models/") for name in names) and not any("aotinductor/" in name for name in names):
        return SourceKind.EXPORTED
    raise UsageError(
        f"'{path}' is neither of torch.jit.save nor of torch.export.save; weights alone (torch.save) are converted "
        "with the code that makes their module: <file>.py:<name>"
    )
