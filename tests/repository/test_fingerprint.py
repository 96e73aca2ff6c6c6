"""Which changes of a model's files are seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from repository.fingerprint import fingerprint
from repository.layout import ModelDirectory


@pytest.fixture
def model(tmp_path: Path) -> ModelDirectory:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text("")
    return ModelDirectory("m", tmp_path / "m", tmp_path)


def write(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("new")

    return change


@pytest.mark.parametrize("change", [write("1/model.py"), write("2/model.py"), write("config.pbtxt")])
def test_a_change_is_seen(model: ModelDirectory, change: Callable[[Path], None]) -> None:
    before = fingerprint(model)
    assert before == fingerprint(model) == fingerprint(model, is_watched=True)
    change(model.path)
    assert fingerprint(model) != before
    assert fingerprint(model, is_watched=True) != before


@pytest.mark.parametrize(
    "name", [".model.py.swp", "model.py~", ".git/index", "1/__pycache__/model.pyc", ".venv/lib.py"]
)
def test_what_lies_around_is_no_change_for_a_watcher(model: ModelDirectory, name: str) -> None:
    before = fingerprint(model, is_watched=True)
    write(name)(model.path)
    assert fingerprint(model, is_watched=True) == before


def test_a_virtual_environment_is_not_watched(model: ModelDirectory) -> None:
    before = fingerprint(model, is_watched=True)
    write("env/pyvenv.cfg")(model.path)
    write("env/lib.py")(model.path)
    assert fingerprint(model, is_watched=True) == before
    assert fingerprint(model) != before


def test_links_are_followed_and_may_go_in_circles(model: ModelDirectory, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.py").write_text("")
    (model.path / "2").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (model.path / "circle").symlink_to(model.path, target_is_directory=True)
    before = fingerprint(model)
    assert [name for name, _, _ in before] == [os.path.join("1", "model.py"), os.path.join("2", "model.py")]
    (tmp_path / "elsewhere" / "model.py").write_text("new")
    assert fingerprint(model) != before
