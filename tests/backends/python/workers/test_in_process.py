"""Models in the server's process: which of the interpreter's modules are a model's own."""

from __future__ import annotations

import gc
import sys
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from backends.python.workers.in_process import InProcessModel


def module(name: str, folder: Path | None = None) -> ModuleType:
    made = ModuleType(name)
    if folder is not None:
        made.__file__ = str(folder / f"{name}.py")
    return made


@pytest.fixture
def model(tmp_path: Path) -> InProcessModel:
    found = InProcessModel()
    found._folders = [str(tmp_path)]
    return found


@pytest.fixture
def modules(model: InProcessModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """In the order in which they were imported."""
    package, other = model._package, InProcessModel()._package
    names = {
        **sys.modules,
        "before": module("before", tmp_path),
        package: module(package),
        f"{package}.model": module("model", tmp_path),
        other: module(other),
        f"{other}.model": module("model", tmp_path / "other"),
        "helper": module("helper", tmp_path),
        "elsewhere": module("elsewhere", tmp_path.parent),
    }
    monkeypatch.setattr(sys, "modules", names)
    return names


def test_a_model_has_what_came_since_its_package(model: InProcessModel, modules: dict[str, ModuleType]) -> None:
    assert sorted(model._own_names()) == sorted([model._package, f"{model._package}.model", "helper"])


def test_without_its_package_nothing_else_is_known_to_be_its_own(
    model: InProcessModel, modules: dict[str, ModuleType]
) -> None:
    del modules[model._package]
    assert model._own_names() == [f"{model._package}.model"]


def test_modules_may_be_imported_meanwhile(model: InProcessModel, modules: dict[str, ModuleType]) -> None:
    """As by another thread that runs while garbage is collected."""
    numbers = count()

    def import_one(phase: str, info: dict[str, int]) -> None:
        modules[f"imported_{next(numbers)}"] = module("imported")

    thresholds = gc.get_threshold()
    gc.callbacks.append(import_one)
    try:
        gc.set_threshold(1)
        found = model._own_names()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(import_one)
    assert "helper" in found
    assert next(numbers) > 1
