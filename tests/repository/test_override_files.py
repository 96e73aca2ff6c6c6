"""The directories of models that a load call brings, and what is left of those whose server was killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from protocol.errors import Internal, InvalidArgument
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


def test_without_a_temporary_directory_only_they_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose root is read-only, and which has no other place."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    remove_abandoned()
    with pytest.raises(Internal, match=r"no place for the override files of model 'm'.* No usable temporary directory"):
        OverrideFiles("m", {"1/weights": b"x"})


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/1/model.py", "1/model.py"),
        ("//1//model.py", "1/model.py"),
        ("1/./model.py", "1/model.py"),
        ("1/x/../model.py", "1/model.py"),
        ("...", "..."),
        ("1/.../..x", "1/.../..x"),
    ],
)
def test_paths_are_below_the_model_s_directory(given: str, path: str, temporary: Path) -> None:
    """One that begins with a slash, too; dots alone are a name, unless there are one or two of them."""
    files = OverrideFiles("m", {given: b"x"})
    assert (files.directory.path / path).read_bytes() == b"x"
    files.release()


@pytest.mark.parametrize("given", ["", "/", ".", "..", "/../x", "1/../../x", "1/..", "a\0b"])
def test_paths_that_lead_out_of_it_are_refused(given: str, temporary: Path) -> None:
    with pytest.raises(InvalidArgument, match="must stay within model directory"):
        OverrideFiles("m", {given: b"x"})
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("count", [65, 5_000])
def test_paths_of_very_many_directories_are_refused(count: int, temporary: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"expected at most 64 directories, got {count}"):
        OverrideFiles("m", {"d/" * count + "f": b"x"})
    assert list(temporary.iterdir()) == []
    OverrideFiles("m", {"d/" * 64 + "f": b"x"}).release()
