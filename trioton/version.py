"""The version and commit of Trioton: `trioton version`."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

UNKNOWN = "unknown"
# Written into a package by the build (.ci/commit_hook.py).
COMMIT_FILE = Path(__file__).parent / "COMMIT"
_GIT_SECONDS = 5.0


def version_text() -> str:
    return f"trioton {metadata.version('trioton')} (commit {commit()})"


def commit() -> str:
    """Of the repository that was installed from, of the build, or of the checkout that an editable installation is in;
    `UNKNOWN` where none of them says."""
    origin = _origin()
    installed = origin.get("vcs_info", {}).get("commit_id")
    if isinstance(installed, str) and installed:
        return installed
    try:
        return COMMIT_FILE.read_text(encoding="utf-8").strip() or UNKNOWN
    except OSError:
        pass
    if origin.get("dir_info", {}).get("editable"):
        return checkout_commit(Path(unquote(urlsplit(str(origin.get("url", ""))).path)))
    return UNKNOWN


def checkout_commit(folder: Path) -> str:
    """The commit that a checkout has, if the folder is one, and whether its files have changed since."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    found = _git(folder, "rev-parse", "HEAD")
    if not found or not top or Path(top).resolve() != folder.resolve():  # it may lie in a checkout of something else
        return UNKNOWN
    return f"{found}, with changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else found


def _origin() -> dict[str, dict[str, object]]:
    """Where the installation came from, as installers note it (PEP 610); empty where they have not."""
    try:
        text = metadata.distribution("trioton").read_text("direct_url.json")
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _git(folder: Path, *words: str) -> str:
    """What git says; nothing where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()
