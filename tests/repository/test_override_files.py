"""The directories of models that a load call brings, and what is left of those whose server was killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from repository.override_files import OverrideFiles, remove_abandoned


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_they_last_as_long_as_somebody_uses_them(temporary: Path) -> None:
    files = OverrideFiles("m", {"1/weights": b"x"})
    assert (files.directory.path / "1" / "weights").read_bytes() == b"x"
    files.share()
    files.release()
    assert files.directory.path.is_dir()
    files.release()
    assert list(temporary.iterdir()) == []


def test_only_what_is_abandoned_is_removed(temporary: Path) -> None:
    """Not what a living server holds, nor what is no directory of ours."""
    held = OverrideFiles("m", {"1/weights": b"x"})
    (temporary / "trioton-override-dead" / "m").mkdir(parents=True)
    (temporary / "trioton-override-file").write_text("x")
    (temporary / "elsewhere").mkdir()
    (temporary / "trioton-override-link").symlink_to(temporary / "elsewhere", target_is_directory=True)
    remove_abandoned()
    left = {path.name for path in temporary.iterdir()}
    assert left == {held.directory.repository.name, "trioton-override-file", "trioton-override-link", "elsewhere"}
    assert (held.directory.path / "1" / "weights").exists()
    held.release()
