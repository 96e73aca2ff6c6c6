"""The command `tritonserver`: `trioton serve` under the name that tools and scripts of Triton's call.

What differs: the server's name is `triton`, help lists all flags, the first word is never a command, and a flag that is
not there is told in words that Model Analyzer looks for. A person who has Triton itself as well sets a variable, and
gets that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from trioton.cli import exit_code, groups_asked_for, serve_process, serve_table, settings_from, taken_words
from trioton.flags.fields import UnknownFlag, UsageError, boolean
from trioton.help import ALL, command_help
from trioton.version import version_text

PROGRAM = "tritonserver"
USAGE = f"usage: {PROGRAM} --model-repository=<path> [flags]"
# False: the next program of this name on PATH is run instead.
VARIABLE = "TRIOTON_TRITONSERVER"
_DEFAULTS = {"id": "triton"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve; answers the exit code."""
    program = sys.argv[0]
    words = taken_words() if arguments is None else list(arguments)
    return exit_code(USAGE, partial(_run, words, os.environ, program))


def _run(words: Sequence[str], environment: Mapping[str, str], program: str) -> int:
    if not _is_wanted(environment):
        _give_way(words, environment.get("PATH", os.defpath), program)
    groups = groups_asked_for(words)
    if groups is not None:
        print(command_help(USAGE, serve_table(), shown=groups or (ALL,)))
        return 0
    if "--version" in words:
        print(version_text())
        return 0
    try:
        settings = settings_from(words, environment, _DEFAULTS)
    except UnknownFlag as error:
        raise UsageError(f"Unexpected argument: {error}") from None
    return serve_process(settings)


def _is_wanted(environment: Mapping[str, str]) -> bool:
    try:
        return boolean(environment.get(VARIABLE) or "true")
    except ValueError as error:
        raise UsageError(f"{VARIABLE}: {error}, got '{environment[VARIABLE]}'") from None


def _give_way(words: Sequence[str], path: str, program: str) -> None:
    """Become the other program. Raises UsageError where there is none."""
    other = other_program(path, program)
    if other is None:
        raise UsageError(f"{VARIABLE} says that another {PROGRAM} is wanted, and there is none behind this one on PATH")
    sys.stdout.flush()
    os.execv(other, [str(other), *words])


def other_program(path: str, program: str) -> Path | None:
    """The first of the name on `path` behind `program`, or of all where that is not on it. Two that give way to each
    other so never take turns."""
    found = [each for folder in path.split(os.pathsep) if folder and _is_program(each := Path(folder, PROGRAM))]
    own = [index for index, each in enumerate(found) if _is_same(each, program)]
    behind = found[own[-1] + 1 :] if own else found
    return behind[0] if behind else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_same(path: Path, program: str) -> bool:
    return os.path.exists(program) and os.path.samefile(path, program)


if __name__ == "__main__":
    sys.exit(main())
