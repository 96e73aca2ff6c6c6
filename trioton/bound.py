"""Runs a command that the kernel kills with the process that started it: `python bound.py <parent's pid> <command> …`.

A program of its own, of which only the standard library is needed: it becomes the command at once. The death signal
outlives `exec`. On other systems than Linux the command outlives a supervisor that is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def bound_command(command: Sequence[str]) -> list[str]:
    """The command, to be started by this process: then it ends with this process, however that ends.

    The kernel kills it when the *thread* ends that has started it, so that has to be one that lasts. Whoever starts it
    from Trio does so in Trio's own thread, not by `trio.lowlevel.open_process`.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):  # it died before it could be noticed
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run '{command[0]}': {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
