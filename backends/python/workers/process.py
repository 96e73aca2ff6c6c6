"""Worker process: a process started by the server; watched, killed and reaped.

Flow: [process] starts `worker/main.py`, or the program of an engine's worker, with one end of a socket pair; `channel`
speaks over the other end. Whatever the worker and what it starts print goes to the log, and the last lines of it into a
failed load's error.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import trio

from backends.python.environments.environment import Environment
from backends.python.workers.output import Output
from protocol.log.tags import TaggedLog, TagsNow

MAIN = Path(__file__).parent.parent / "worker" / "main.py"

# How long a killed process may take to be gone; the kernel needs longer only for one stuck in a device or a file
# system.
_REAP_SECONDS = 5.0


class WorkerProcess:
    """One worker process, leader of its own process group. `control` is the worker's end of the socket pair, `mode`
    what its `program`, by default that of the Python backend, is told beside that.

    To be made in the thread that runs Trio: the kernel kills a worker when the thread that started it ends.

    Raises:
        OSError: the interpreter cannot be started.
    """

    noun = "worker process"
    killed_text = "was killed by the server"

    def __init__(
        self,
        environment: Environment,
        control: socket.socket,
        log: TaggedLog,
        name: str,
        *mode: str,
        program: Path | None = None,
    ) -> None:
        self._log = log
        self._name = name
        ours, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [environment.interpreter, str(program or MAIN), str(control.fileno()), *mode],
                env=environment.variables,
                cwd=environment.working_directory,
                pass_fds=(control.fileno(), *environment.descriptors),
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,  # so that a terminal's Ctrl-C is the server's alone, and a kill reaches all
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._output = Output(ours, log, name)

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident_bytes(self) -> int | None:
        """What the process has in memory; None where it has ended, or the system does not tell."""
        return resident_bytes(self.pid)

    @property
    def tail(self) -> list[str]:
        """The last lines that were printed, oldest first."""
        return self._output.tail

    def exit_text(self) -> str | None:
        """How the process ended (`exited with code 3`, `was killed by SIGSEGV`); None while it runs.

        Does not reap: the process id stays taken until `close`, so that a kill can hit nobody else.
        """
        if self._process.returncode is not None:
            return exit_text(self._process.returncode)
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # reaped by somebody else: the server was started with SIGCHLD ignored
            return "ended"
        if found is None:
            return None
        return exit_text(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    async def wait_exit(self) -> None:
        """Sleep until the process has ended. Any number of tasks may wait."""
        if self.exit_text() is not None:
            await trio.lowlevel.checkpoint()
            return
        if not hasattr(os, "pidfd_open"):
            await trio.to_thread.run_sync(
                os.waitid, os.P_PID, self.pid, os.WEXITED | os.WNOWAIT, abandon_on_cancel=True
            )
            return
        descriptor = os.pidfd_open(self.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    async def forward_output(self, tags_now: TagsNow) -> None:
        """Log what is printed, line by line, until all who can print are gone."""
        await self._output.forward(tags_now)

    async def log_last_output(self, tags_now: TagsNow) -> None:
        """Log what the pipe still holds of a process that has ended."""
        await self._output.log_last(tags_now)

    def kill(self) -> None:
        """End the process and its group at once. Harmless when it has ended."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill what is left, reap, free. Shielded, and bounded by a few seconds."""
        with trio.move_on_after(_REAP_SECONDS, shield=True):
            self.kill()
            if self._process.returncode is None:
                await self.wait_exit()
                self.kill()  # what the process started while it was being killed
                self._process.wait()
        self._output.close()
        if self._process.returncode is None:
            self._log.error("%s: process %d does not end although it was killed", self._name, self.pid)


def resident_bytes(pid: int) -> int | None:
    """What a process has in memory, shared pages included; None where it has ended, or the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGESIZE") or None


def exit_text(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
