"""Configurations of candidates as `config.pbtxt`, and the one that is applied to a repository."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from repository.layout import CONFIG_FILE, ModelDirectory
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from repository.readable_pbtxt import format_readable, without_defaults
from trioton.analyze.results.findings import Findings
from trioton.flags.fields import UsageError
from trioton.report.blocks import unified

CONFIGS = "configs"
_NAME_CHARACTERS = 100

Change = Callable[[ModelConfig], ModelConfig]


def config_texts(directory: ModelDirectory, completed: ModelConfig, change: Change) -> tuple[str, str]:
    """The text of the model's file, empty where it has none, and that of the same with a change."""
    path = directory.path / CONFIG_FILE
    if not path.is_file():
        return "", format_readable(without_defaults(change(completed), directory))
    before = path.read_text(encoding="utf-8")
    config = parse_pbtxt(before, source=str(path))
    changed = change(config)
    return before, before if changed == config else format_readable(changed)


def write_configs(folder: Path, texts: dict[str, str]) -> None:
    """A file for each candidate, by rank and settings."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.pbtxt"):
        old.unlink()
    for rank, (name, text) in enumerate(texts.items()):
        plain = re.sub(r"[^A-Za-z0-9=,.+-]", "_", name)[:_NAME_CHARACTERS]
        (folder / f"{rank:02}-{plain}.pbtxt").write_text(text, encoding="utf-8")


def difference(findings: Findings, path: Path) -> list[str]:
    """What is to be changed in a file, as lines that `patch` takes.

    Raises:
        UsageError: the file is no longer what was analyzed.
    """
    now = path.read_text(encoding="utf-8") if path.exists() else ""
    if now == findings.config_after:
        return []
    if now != findings.config_before:
        raise UsageError(f"{path} is no longer what was analyzed; analyze the model again")
    return unified(now, findings.config_after, str(path) if now else os.devnull, str(path))


def write_config(text: str, path: Path) -> None:
    """All of it or nothing, under a running server, too."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
