"""A process that compiles structures for the judge, and may be killed: `python -m …structure_process FOLDER BYTES`.

A line in for each, a JSON object with `kind` and `value`; a line out, a JSON object with `error`, empty where it can be
compiled, and `bytes`, what that has taken; the process ends where it had no more memory to give. The first line out
says that it is ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .engine import Refused, Structure

_START_SECONDS = 60.0
# A process that has so many more bytes than at its start is ended, and another one started.
_RENEWED_ABOVE = 1 << 28


class TooCostly(Exception):
    """Compiling a structure takes too long, or too much memory; another time it may not."""


class StructureProcess:
    """The process as who asks it sees it; it is started when it is needed. All methods block."""

    def __init__(self, folder: str, memory: int) -> None:
        """`memory` is what compiling one may take, in bytes."""
        self._command = [sys.executable, "-m", __name__, folder, str(memory)]
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = 0

    def compile(self, structure: Structure, seconds: float) -> int:
        """The bytes that it takes.

        Raises:
            Refused: it cannot be compiled.
            TooCostly: it takes longer than `seconds`, or more memory than there is for it.
            OSError: the process does not start.
        """
        place = f"structured_outputs.{structure.kind}"
        process = self._process or self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"kind": structure.kind, "value": structure.value}).encode() + b"\n")
            process.stdin.flush()
            answer = _read(process, seconds)
        except TimeoutError:
            self.stop()
            raise TooCostly(f"{place}: it takes more than {seconds:g} s to compile") from None
        except OSError:
            self.stop()
            raise TooCostly(f"{place}: compiling it takes too much memory") from None
        self._kept += answer["bytes"]
        if self._kept > _RENEWED_ABOVE:
            self.stop()
        if answer["error"]:
            raise Refused(answer["error"])
        return int(answer["bytes"])

    def stop(self) -> None:
        """Kill it."""
        process, self._process, self._kept = self._process, None, 0
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError), process:  # closes its pipes, and waits for it
                pass

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment)
        try:
            _read(self._process, _START_SECONDS)
        except OSError as error:
            self.stop()
            raise OSError(f"the process that compiles structures does not start: {error}") from None
        return self._process


def _read(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """Its next line. Raises TimeoutError; an OSError where the process has ended."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0.0))
        if not readable:
            raise TimeoutError
        more = os.read(descriptor, 1 << 16)
        if not more:
            raise OSError(f"it has ended with {process.wait()}")
        line += more
    found: dict[str, Any] = json.loads(line)
    return found


def main(folder: str, memory: int) -> None:
    """The process itself: serves until there is no more to read."""
    from trioton_worker.lifeline import die_with_parent  # type: ignore[import-not-found]  # on the path in the worker

    from .structures import StructureCompiler

    die_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # the library writes where it likes
    compiler = StructureCompiler(folder)
    compiler.prepare()
    limit = _size("VmSize") + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    os.write(answers, b'{"error": "", "bytes": 0}\n')
    for line in sys.stdin.buffer:
        before = _size("VmRSS")
        error = ""
        try:
            compiler.compile(Structure(**json.loads(line)))
        except Refused as refusal:
            error = str(refusal)
            if _size("VmPeak") > limit - memory // 8:  # it may have failed for that, in whatever words
                os._exit(1)  # without the library's clean-up, which may wait for ever now
        answer = {"error": error, "bytes": max(_size("VmRSS") - before, 0)}
        os.write(answers, json.dumps(answer).encode() + b"\n")


def _size(name: str) -> int:
    """One of those that the kernel tells of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
