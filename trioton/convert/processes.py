"""Runs a step: a process of its own with limits, a log, and a script that repeats it.

A step ends with its owner, however that ends, as its standard input closes then. `trioton.bound` would kill the step
alone and leave the compilers that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trioton.module_path import module_path

ARGUMENTS, LOG, SCRIPT, RESULT = "arguments.json", "log.txt", "run.sh", "result.json"
# Given to the process: it ends when its standard input does.
OWNED = "--owned"
_PROGRAMS = "trioton.convert.programs"
# Of the log, in an error.
_LAST_LINES = 3


class StepFailed(Exception):
    """A step has failed; the text says which, why, and where its log is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may use."""

    seconds: float
    memory_bytes: int


class Processes:
    """Runs steps one after the other, each in a folder of `work`."""

    def __init__(self, work: Path, limits: Limits) -> None:
        self._work, self._limits = work, limits
        self._count = 0

    def run(self, program: str, arguments: Mapping[str, Any], name: str = "") -> dict[str, Any]:
        """The step's result.

        Raises:
            StepFailed: it has failed, or was over a limit.
        """
        self._count += 1
        title = name or program
        folder = self._work / "steps" / f"{self._count:02}-{title.replace('_', '-')}"
        folder.mkdir(parents=True)
        given = {"program": program, "memory_bytes": self._limits.memory_bytes, "arguments": dict(arguments)}
        (folder / ARGUMENTS).write_text(json.dumps(given, indent=2))
        command = [sys.executable, "-m", _PROGRAMS, str((folder / ARGUMENTS).absolute())]
        self._write_script(folder, command)
        code = self._wait(folder, [*command, OWNED])
        return self._result(folder, title, code)

    def _write_script(self, folder: Path, command: list[str]) -> None:
        export = f"export PYTHONPATH={shlex.quote(module_path())}"
        script = folder / SCRIPT
        script.write_text(f"#!/bin/sh\ncd {shlex.quote(str(self._work))}\n{export}\nexec {shlex.join(command)}\n")
        script.chmod(0o755)

    def _wait(self, folder: Path, command: list[str]) -> int:
        """The exit code. Whatever happens, nothing of the process is left."""
        with (folder / LOG).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env={**os.environ, "PYTHONPATH": module_path()},
                start_new_session=True,
            )
            try:
                return process.wait(self._limits.seconds)
            except subprocess.TimeoutExpired:
                log.write(f"\nended: it took longer than {self._limits.seconds:g} s (--step-secs)\n".encode())
                return -signal.SIGKILL
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()

    def _result(self, folder: Path, title: str, code: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((folder / RESULT).read_text())
        if code == 0 and "error" not in found:
            return found
        log = (folder / LOG).read_text(errors="replace").strip().splitlines()
        reason = found.get("error") or " / ".join(log[-_LAST_LINES:]) or "no words"
        how = f"ended by {signal.Signals(-code).name}: " if code < 0 and not found else ""
        raise StepFailed(f"{title}: {how}{reason} (log: {folder / LOG})")
