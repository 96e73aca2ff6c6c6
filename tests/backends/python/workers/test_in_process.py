"""Models in the server's process: what is said of the interpreter's modules, which other threads change meanwhile."""

from __future__ import annotations

import gc
import sys
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from backends.python.workers.in_process import InProcessModel


def test_modules_may_be_imported_while_those_of_a_model_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another thread that runs while garbage is collected."""
    numbers = count()
    model = InProcessModel()
    model._folders = [str(tmp_path)]
    own = ModuleType("own_module")
    own.__file__ = str(tmp_path / "own_module.py")
    modules = {**sys.modules, own.__name__: own}
    monkeypatch.setattr(sys, "modules", modules)

    def import_one(phase: str, info: dict[str, int]) -> None:
        modules[f"imported_{next(numbers)}"] = own

    thresholds = gc.get_threshold()
    gc.callbacks.append(import_one)
    try:
        gc.set_threshold(1)
        found = model._names_in_folders()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(import_one)
    assert "own_module" in found
    assert next(numbers) > 1
