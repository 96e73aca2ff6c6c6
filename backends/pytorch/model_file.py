"""Detects the format of a torch model file, which suffixes alone do not tell (`.pt2`, `.pt`)."""

from __future__ import annotations

import enum
import zipfile
from pathlib import Path

from backends.interface import ModelSource
from protocol.errors import Internal, Unavailable

MODEL_FILES = ("model.pt", "model.pt2")


class FileKind(enum.Enum):
    SCRIPT = "TorchScript"
    EXPORTED = "torch.export"
    COMPILED = "AOTInductor"


def model_path(source: ModelSource) -> Path:
    """The default model file; where it is not named, the one that is there.

    Raises:
        Unavailable: there is none.
    """
    named = source.config.default_model_filename
    paths = [source.version_directory / name for name in ((named,) if named else MODEL_FILES)]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise Unavailable(f"unable to find '{paths[0]}' for model instance '{source.name}'")
    return found


def kind_of(path: Path, *, model: str) -> FileKind:
    """Raises Internal for a file that is none of the three, with what it is if that can be told."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Everything is in one folder, of any name.
            names = {name.partition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile:
        raise Internal(
            f"failed to load model '{model}': '{path}' is no file of PyTorch: it is not a ZIP archive"
        ) from None
    if "constants.pkl" in names:
        return FileKind.SCRIPT
    if any(name.startswith("data/aotinductor/") for name in names):
        return FileKind.COMPILED
    if any(name.startswith("models/") for name in names):
        return FileKind.EXPORTED
    if "data.pkl" in names:
        raise Internal(
            f"failed to load model '{model}': '{path}' holds weights without a program (torch.save); write the program "
            f"too, with torch.jit.save or torch.export.save, or put its class into a model.py beside it and set "
            f'runtime: "model.py"'
        )
    raise Internal(
        f"failed to load model '{model}': '{path}' is a ZIP archive, but holds no model of torch.jit.save, "
        f"torch.export.save or AOTInductor"
    )
