"""What provokes causes of `stalls`: a process whose threads take no processor from the server that others want.

Clients on other machines do not. Threads with the least priority are not enough: where the system schedules sessions as
groups (autogroup of Linux), priorities hold within a session only, and that of the clients gets as much as the
server's. So this is a session of its own, which is given the least weight.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from tests.bench.peers import SOURCE
from tests.bench.stall_causes import CAUSES
from tests.bench.stall_target import Target

LEAST_PRIORITY = 19
STOP_SECONDS = 10


class ProvokerError(Exception):
    """A cause could not be provoked; what is wrong is in the standard error output."""


class Provoker:
    """The process, while the block lasts."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __enter__(self) -> Provoker:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.stall_provoker", json.dumps(asdict(self._target), default=str)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=SOURCE,
            start_new_session=True,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()

    def provoke(self, cause: str) -> None:
        """Returns when it is over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(cause + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise ProvokerError(cause)


def _take_least() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, LEAST_PRIORITY)  # of this thread, and those that it starts
        with suppress(OSError):  # no such groups
            Path("/proc/self/autogroup").write_text(str(LEAST_PRIORITY))


def main(words: str) -> None:
    target = json.loads(words)
    target = Target(tuple(target["ports"]), Path(target["models"]), target["count"])
    _take_least()
    for line in sys.stdin:
        CAUSES[line.strip()](target)
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
