"""A server in a process of its own: its addresses, its log, its descendants."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType

from tests.marked_processes import MARK

# Generous: nothing waits so long unless something is broken.
TIMEOUT_SECONDS = 60.0
LOCAL = "127.0.0.1"
SERVICES = {"grpc": "GRPCInferenceService", "http": "HTTPService", "metrics": "Metrics Service"}


class ServerProcess:
    """`trioton serve` with the given flags, on free ports of this machine; killed at the end of the `with` block.

    With `model` in place of `repository` it is `trioton run`, with `folder` the folder of a language model; `command`
    stands for all words but `flags`.
    """

    def __init__(
        self,
        *flags: str,
        repository: Path | str | None = None,
        model: Path | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        command: Sequence[str] = (),
        module: str = "trioton",
        start_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """`environment` is added to that of this process; `launcher` is a command that ends in running another.
        `module` is run as `trioton` is; `start_seconds` is how long it may take until it listens."""
        self._start_seconds = start_seconds
        if model is not None:
            words = ["run", str(model)]
        else:
            words = ["serve", f"--model-repository={repository}" if folder is None else str(folder)]
        anywhere = [f"--{word}-{what}" for word in SERVICES for what in (f"address={LOCAL}", "port=0")]
        self._process = subprocess.Popen(
            [*launcher, sys.executable, "-m", module, *(command or (*words, *anywhere)), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {}), **MARK},
        )
        self._lines: list[str] = []
        self._has_ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self.wait()
        if error is not None:
            print(self.log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything that the server has written so far, to either stream."""
        with self._changed:
            return "".join(self._lines)

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Where the three services listen, as host:port; waits until they do."""
        return {
            word: self.wait_for_line(rf'Started {name} at ([^\s"]+)', self._start_seconds).group(1)
            for word, name in SERVICES.items()
        }

    def wait_for_line(self, pattern: str, seconds: float = TIMEOUT_SECONDS) -> re.Match[str]:
        """The first match in the log; waits for it."""
        compiled = re.compile(pattern)

        def found() -> re.Match[str] | None:
            return next((match for line in self._lines if (match := compiled.search(line))), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._has_ended, seconds)
            match = found()
        assert match is not None, f"no line matches {pattern!r} in the log:\n{self.log}"
        return match

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the process to end; answers its exit code, or minus the signal that killed it."""
        code = self._process.wait(TIMEOUT_SECONDS)
        self._reader.join(TIMEOUT_SECONDS)
        return code

    def descendants(self) -> set[int]:
        """The processes that the server has started, and theirs, as far as they live."""
        parents = dict(_processes())
        found: set[int] = set()
        while more := {pid for pid, parent in parents.items() if parent in {self.pid, *found}} - found:
            found |= more
        return found

    def workers(self) -> set[int]:
        """Those of them that run models: neither fork servers nor edge processes."""
        return {pid for pid in self.descendants() if not _name_of(pid).startswith(("fork-server", "trioton-edge-"))}

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def is_running(pid: int) -> bool:
    """Whether a process lives; one that has ended and waits for its parent to notice does not."""
    return _stat(pid) not in (None, "Z")


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within the time limit; looks again and again."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _processes() -> list[tuple[int, int]]:
    """Every process of the machine with its parent."""
    found: list[tuple[int, int]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if fields is not None:
            found.append((int(folder.name), int(fields[1])))
    return found


def _stat(pid: int) -> str | None:
    fields = _fields(pid)
    return None if fields is None else fields[0]


def _fields(pid: int) -> list[str] | None:
    """The state, the parent and so on of a process, from /proc/<pid>/stat; the name before may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""
