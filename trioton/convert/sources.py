"""Kinds of sources that can be converted, told by a path."""

from __future__ import annotations

import enum
import zipfile
from pathlib import Path

import msgspec

from trioton.flags import UsageError


class SourceKind(enum.StrEnum):
    MODULE = "torch module"
    TORCH_SCRIPT = "TorchScript"
    EXPORTED = "torch.export"
    ONNX = "ONNX"


TORCH_KINDS = frozenset({SourceKind.MODULE, SourceKind.TORCH_SCRIPT, SourceKind.EXPORTED})


class Source(msgspec.Struct, frozen=True):
    """What is converted. `factory` is the name in `module.py:name`, empty for all other kinds."""

    kind: SourceKind
    path: str
    factory: str = ""

    @property
    def name(self) -> str:
        """A model's name by the file's."""
        path = Path(self.path)
        return path.parent.name if path.stem == "model" else path.stem


def find_source(word: str) -> Source:
    """Raises UsageError: there is no such file, or it is of no kind that is known."""
    path, colon, factory = word.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file() or not factory.isidentifier():
            raise UsageError(f"'{word}': expected <file>.py:<function or class that makes a torch.nn.Module>")
        return Source(SourceKind.MODULE, str(Path(path).absolute()), factory)
    place = Path(word)
    if not place.is_file():
        raise UsageError(f"'{word}' is neither a file nor a folder that can be converted")
    return Source(_kind_of_file(place), str(place.absolute()))


def _kind_of_file(path: Path) -> SourceKind:
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return SourceKind.ONNX
    if suffix in (".pt", ".pt2"):
        return _kind_of_torch_file(path)
    if suffix == ".py":
        raise UsageError(f"'{path}': say which function or class makes the module: {path}:<name>")
    raise UsageError(f"'{path}' is none of the sources: <file>.py:<name>, .pt, .pt2, .onnx")


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
