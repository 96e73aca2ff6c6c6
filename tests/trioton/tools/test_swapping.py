"""Two directories change places."""

from __future__ import annotations

from pathlib import Path

from trioton.tools.swapping import swap


def test_two_directories_change_places(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if swap(tmp_path / "a", tmp_path / "b"):
        assert (tmp_path / "a" / "b").exists()
        assert (tmp_path / "b" / "a").exists()
    else:  # a file system that cannot
        assert (tmp_path / "a" / "a").exists()


def test_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not swap(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").is_dir()
