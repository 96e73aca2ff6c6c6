"""The parts of the demo that need no server; the whole of it is shown in `tests/e2e`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from trioton.demo import DEFAULT_REPOSITORY, DemoError, chosen_repository, examples_folder, serve_command


def test_the_examples_are_found() -> None:
    """In a checkout they lie beside the package."""
    folder = examples_folder()
    assert (folder / "tour.py").is_file()
    assert (folder / "build_repository.py").is_file()


def test_the_repository_is_where_it_is_wished_for(tmp_path: Path) -> None:
    """It is made, and it stays."""
    with chosen_repository(tmp_path / "a" / "b") as repository:
        assert repository == tmp_path / "a" / "b"
    assert repository.is_dir()


def test_by_default_the_repository_is_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with chosen_repository(None) as repository:
        assert repository == DEFAULT_REPOSITORY
        assert (tmp_path / DEFAULT_REPOSITORY).is_dir()


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wish that cannot be granted is an error; the default gives way to a temporary directory, gone afterwards."""
    (tmp_path / ".demo").write_text("a file is in the way")
    with (
        pytest.raises(DemoError, match="choose another directory with --repository"),
        chosen_repository(tmp_path / ".demo" / "models"),
    ):
        pass
    monkeypatch.chdir(tmp_path)
    with chosen_repository(None) as repository:
        assert repository.is_dir()
        assert repository.is_absolute()
    assert not repository.exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_on_path", [True, False])
@pytest.mark.parametrize("folder", [Path(), Path("..")])
def test_the_command_to_serve_works_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_path: bool, folder: Path
) -> None:
    """In a shell whose environment is active or not, and for a folder whose name has a space."""
    scripts = Path(sysconfig.get_path("scripts"))
    monkeypatch.setenv("PATH", f"{scripts}:/usr/bin:/bin" if is_on_path else "/usr/bin:/bin")
    monkeypatch.chdir(scripts.parent if folder == Path() else tmp_path)
    command = serve_command(tmp_path / "my models")
    assert shlex.split(command)[-2:] == ["serve", f"--model-repository={tmp_path / 'my models'}"]
    if is_on_path:
        assert command.startswith("trioton ")
    typed = subprocess.run(
        f"{command} --help", shell=True, capture_output=True, text=True, check=False
    )  # as a person's shell
    assert typed.returncode == 0, typed.stderr
    assert shutil.which(shlex.split(command)[0]) is not None
