"""The Python backend for `trioton.testing`: models run in this process, so that debuggers, coverage and mocks reach
them.

Flow: backend → [launcher] → a thread, as for models that the server has in its own process.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from backends.python.backend import PythonBackend
from backends.python.launcher import WorkerLauncher, thread_for
from backends.python.settings import Isolation
from backends.python.worker.trioton_worker.connection import Connection, Head
from backends.python.worker.trioton_worker.making import SharingMaker
from backends.python.worker.trioton_worker.session import Session
from backends.python.workers.in_process import InProcessModel, InProcessWorker, place_of
from backends.python.workers.link import WorkerLink
from backends.python.workers.runner import Runner
from repository.model_config import InstanceKind

NoteFailure = Callable[[BaseException], None]


def in_process_backend(note_failure: NoteFailure) -> type[PythonBackend]:
    """A backend whose instances are threads; `note_failure` gets every exception that a model raises, in its thread."""

    class InProcessLauncher(WorkerLauncher):
        _shared: TestedModel | None = None

        async def own_process(
            self, name: str, cores: frozenset[int] = frozenset(), program: Path | None = None
        ) -> WorkerLink:
            return await self._thread(TestedModel(note_failure), name)

        async def launch(
            self, name: str, kind: InstanceKind, load_head: Mapping[str, object], cores: frozenset[int] = frozenset()
        ) -> WorkerLink:
            isolation = self._settings.isolation
            if isolation in (Isolation.THREADS, Isolation.IN_PROCESS, Isolation.IN_LOOP):
                if self._shared is None:
                    self._shared = TestedModel(note_failure)
                return await self._thread(self._shared, name, thread_for(isolation))
            return await self._thread(TestedModel(note_failure, is_forked=isolation is Isolation.FORK), name)

        async def _thread(
            self, model: TestedModel, name: str, kind: type[InProcessWorker] = InProcessWorker
        ) -> WorkerLink:
            async def start(control: socket.socket) -> Runner:
                return kind(model, control, name)

            return await self._link(name, start)

    class InProcessBackend(PythonBackend):
        launcher = InProcessLauncher

    return InProcessBackend


class TestedModel(InProcessModel):
    """The module of the instances that share one, which is each alone where it would have a process of its own."""

    def __init__(self, note_failure: NoteFailure, *, is_forked: bool = False) -> None:
        super().__init__()
        if is_forked:
            self.maker = _ForkedMaker(self._load)
        self._note_failure = note_failure

    def session(self, connection: Connection) -> Session:
        return Session(connection, owns_process=False, note_failure=self._note_failure)

    def is_hidden(self, module: Path) -> bool:
        """A test may import the model's modules itself, and lie among them."""
        known = sys.modules.get(module.stem)
        if known is not None:
            return not _is_same(place_of(known), module)
        spec = importlib.util.find_spec(module.stem)
        return spec is not None and not _is_same(spec.origin or "", module)


class _ForkedMaker(SharingMaker):
    def make(self, head: Head) -> Any:
        """An object as a forked process would have it."""
        model = super().make(head)
        after_fork = getattr(model, "after_fork", None)
        if after_fork is not None:
            after_fork(head["args"])
        return model


def _is_same(place: str, module: Path) -> bool:
    file = module / "__init__.py" if module.is_dir() else module
    return os.path.realpath(place) == os.path.realpath(file)
