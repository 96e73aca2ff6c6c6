"""Which commit a version is of, for each way in which it may have been installed."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from trioton import version
from trioton.version import UNKNOWN, checkout_commit, commit


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    (folder / "inside").mkdir(parents=True)
    (folder / "file").write_text("x")
    git(folder, "init", "-q")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_checkout(checkout: Path) -> None:
    """Also with changes; what only lies in a checkout of something else has no commit."""
    head = git(checkout, "rev-parse", "HEAD")
    assert checkout_commit(checkout) == head
    (checkout / "file").write_text("y")
    assert checkout_commit(checkout) == f"{head}, with changes"
    assert checkout_commit(checkout / "inside") == UNKNOWN
    assert checkout_commit(checkout / "absent") == UNKNOWN


class Installed:
    def __init__(self, origin: str | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin


def install(monkeypatch: pytest.MonkeyPatch, origin: object, *, commit_file: Path) -> None:
    text = origin if isinstance(origin, str) or origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(text))
    monkeypatch.setattr(version, "COMMIT_FILE", commit_file)


def test_where_the_commit_comes_from(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installer's note, what the build has written, the checkout that is worked in; in this order."""
    built = tmp_path / "COMMIT"
    vcs = {"url": "https://x/y.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    install(monkeypatch, vcs, commit_file=built)
    assert commit() == "abc"
    install(monkeypatch, {"url": checkout.as_uri(), "dir_info": {"editable": True}}, commit_file=built)
    assert commit() == git(checkout, "rev-parse", "HEAD")
    install(monkeypatch, {"url": checkout.as_uri(), "dir_info": {}}, commit_file=built)
    assert commit() == UNKNOWN  # the folder may have changed since
    built.write_text("def\n")
    assert commit() == "def"


@pytest.mark.parametrize("origin", [None, "", "{", "[]", '{"vcs_info": {"commit_id": 1}}', "{}"])
def test_an_installation_that_does_not_say(origin: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, origin, commit_file=tmp_path / "absent")
    assert commit() == UNKNOWN


def test_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert checkout_commit(checkout) == UNKNOWN
