"""Loads the example scripts, which are no package, as the modules that they are when they run."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from backends.python.workers.in_process import offer_utilities

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def load_example(name: str) -> ModuleType:
    """A script of `examples/`, or with `clients/` before its name one of the clients."""
    path = EXAMPLES / name
    with import_path(path.parent):
        return importlib.import_module(path.name)


def load_backend_utils() -> ModuleType:
    """The `triton_python_backend_utils` that models meet in the server's process."""
    offer_utilities()
    return importlib.import_module("triton_python_backend_utils")


def load_model(path: Path) -> ModuleType:
    """A `model.py`, imported in this process."""
    spec = importlib.util.spec_from_file_location(f"model_{path.parents[1].name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    offer_utilities()
    spec.loader.exec_module(module)
    return module


@contextmanager
def import_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
