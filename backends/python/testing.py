"""The Python backend in this process: a thread stands where a worker process would, and all else is the same.

Flow: backend → link → socket pair → [thread] running the worker's own loop. For `trioton.testing`: a debugger, coverage
and monkeypatching reach the model. A thread cannot be killed, so a model that never returns outlives its instance.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import trio

from backends.python import worker
from backends.python.backend import PythonBackend
from backends.python.environment import Environment
from backends.python.link import WorkerLink
from backends.python.process import WorkerProcess
from backends.python.worker import trioton_worker
from backends.python.worker.trioton_worker import api
from backends.python.worker.trioton_worker.connection import Connection
from backends.python.worker.trioton_worker.serve import serve
from backends.python.worker.trioton_worker.session import Session, close_session, open_session

NoteFailure = Callable[[BaseException], None]

# Modules that models import, by the names that they have in a worker process.
_MODULES = ("triton_python_backend_utils", "c_python_backend_utils")
# How long a thread may take to end once its connection is closed.
_END_SECONDS = 2.0


def in_process_backend(note_failure: NoteFailure) -> type[PythonBackend]:
    """A backend whose instances are threads; `note_failure` gets every exception that a model raises, in its thread."""
    numbers = itertools.count(1)

    class InProcessLink(WorkerLink):
        def _start_process(self, environment: Environment, control: socket.socket) -> WorkerProcess:
            return WorkerThread(control, self._log, self.name, note_failure, package=f"_trioton_model_{next(numbers)}")

    class InProcessBackend(PythonBackend):
        link_type = InProcessLink

    return InProcessBackend


def offer_backend_utils() -> None:
    """Let this process import `triton_python_backend_utils`, as a worker does. Calling it again does nothing."""
    # The worker's modules have these names in a worker process, and must not be imported a second time under them.
    sys.modules["trioton_worker"] = trioton_worker
    sys.modules["trioton_worker.api"] = api
    for name in _MODULES:
        sys.modules[name] = importlib.import_module(f"{worker.__name__}.{name}")


class ThreadSession(Session):
    """A session whose end is not that of a process."""

    def __init__(self, connection: Connection, note_failure: NoteFailure) -> None:
        super().__init__(connection)
        self.end = ""
        self._note_failure = note_failure

    def break_off(self, error: BaseException) -> None:
        self.end = f"ended by {type(error).__name__}: {error}" if str(error) else f"ended by {type(error).__name__}"
        self._note_failure(error)
        self.connection.hang_up()

    def note_failure(self, error: BaseException) -> None:
        self._note_failure(error)


class WorkerThread(WorkerProcess):
    """A thread that runs one worker's loop over its end of the socket pair."""

    def __init__(
        self, control: socket.socket, log: logging.Logger, name: str, note_failure: NoteFailure, *, package: str
    ) -> None:
        self._log = log
        self._name = name
        self._control = control.dup()
        self._ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._session = ThreadSession(Connection(self._control), note_failure)
        self._session.package = package
        offer_backend_utils()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        session = self._session
        open_session(session)
        try:
            serve(session)
        except BaseException as error:  # a worker process would end here
            session.break_off(error)
        finally:
            close_session(session)
            for end in session.at_end:
                end()
            self._control.close()
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._ended.set)

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def tail(self) -> list[str]:
        return []

    def exit_text(self) -> str | None:
        return (self._session.end or "ended") if self._ended.is_set() else None

    async def wait_exit(self) -> None:
        await self._ended.wait()

    async def forward_output(self) -> None:
        """What a thread prints goes where all that this process prints goes."""

    def log_last_output(self) -> None:
        pass

    def kill(self) -> None:
        """Have the thread end when the model returns."""
        self._session.connection.hang_up()

    async def close(self) -> None:
        self.kill()
        with trio.move_on_after(_END_SECONDS, shield=True):
            await self._ended.wait()
        if not self._ended.is_set():
            self._log.warning("%s: the model does not return; its thread is left behind", self._name)
