"""`ISOLATION: in_process`: instances as threads of the server's process, where the operator allows that.

The thread runs the same code as a worker process does, over a socket as well, so all that is promised of models holds;
but nothing can end the thread except the model itself, and what ends the process ends the server.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import trio

from backends.python.environments.own_modules import OwnModules
from backends.python.worker.trioton_worker import api
from backends.python.worker.trioton_worker.connection import Connection
from backends.python.worker.trioton_worker.loader import class_in, class_of, make_package, model_folders
from backends.python.worker.trioton_worker.making import SharingMaker
from backends.python.worker.trioton_worker.serve import serve
from backends.python.worker.trioton_worker.session import Session, open_session
from protocol.log.tags import TagsNow

logger = logging.getLogger("trioton.backends.python")

# How long a thread may take to end when it is told to; then it is left alone.
_END_SECONDS = 2.0
# The names of all models' packages begin so.
_PACKAGES = "trioton_model_"
_UTILITIES: Mapping[str, Mapping[str, Any]] = {
    "triton_python_backend_utils": {each: getattr(api, each) for each in api.__all__},
    "c_python_backend_utils": api.EXTENSION,
}


class InProcessModel:
    """The module of one model version, imported once for all of its instances; dropped with the last one."""

    def __init__(self) -> None:
        self.maker = SharingMaker(self._load)
        self.places = 0
        self._package = f"{_PACKAGES}{id(self)}"
        self._folders: list[str] = []
        self._own: OwnModules | None = None

    def _load(self, head: Mapping[str, Any]) -> Any:
        """In an instance's thread."""
        path, version_directory = head["path"], head["version_directory"]
        offer_utilities()
        folders = model_folders(path, head["directory"], version_directory)
        modules = list(_modules(path, folders))
        is_hidden = any(self.is_hidden(module) for module in modules)
        self._folders = folders
        writes = not sys.dont_write_bytecode
        sys.dont_write_bytecode = True  # as in a worker, see its loader; the server's own modules are imported already
        try:
            name = f"{self._package}.{Path(path).stem}"
            if not is_hidden:
                sys.path += folders
                make_package(self._package, os.path.dirname(path))
                return class_of(name, path)
            self._own = OwnModules(self._package, folders, [module.stem for module in modules])
            sys.meta_path.insert(0, self._own)
            make_package(self._package, os.path.dirname(path))
            return class_in(importlib.import_module(name), path)
        finally:
            sys.dont_write_bytecode = not writes

    def session(self, connection: Connection) -> Session:
        """For one of its instances."""
        return Session(connection, owns_process=False)

    def is_hidden(self, module: Path) -> bool:
        """Whether the name of a module of its own, a file or a folder, means something else here."""
        return module.stem in sys.modules or importlib.util.find_spec(module.stem) is not None

    def leave(self) -> None:
        """An instance has ended. With the last one the model's modules are forgotten, so that it can be loaded anew."""
        self.places -= 1
        if self.places or not self._folders:
            return
        if self._own is not None:
            sys.meta_path.remove(self._own)
            self._own = None
        else:
            for folder in self._folders:
                with suppress(ValueError):  # somebody else has set the path back
                    sys.path.remove(folder)
        for name in self._own_names():
            sys.modules.pop(name, None)
        self._folders = []
        self.maker = SharingMaker(self._load)

    def _own_names(self) -> list[str]:
        """Its package, and what has been imported of that and of its folders since there is one: modules are in the
        order in which they came. The rest were there before."""
        roots = tuple(folder + os.sep for folder in self._folders)
        # A copy is made in one go; while a list of pairs is, garbage may be collected, and another thread import.
        modules = sys.modules.copy()
        of_package: list[str] = []
        of_folders: list[str] = []
        for name in reversed(modules):
            if name.startswith(_PACKAGES):
                if name == self._package:
                    return [name, *of_package, *of_folders]
                if name.partition(".")[0] == self._package:
                    of_package.append(name)
            elif place_of(modules[name]).startswith(roots):
                of_folders.append(name)
        return of_package  # somebody has removed the package: what was there before it is not known


def _modules(path: str, folders: Sequence[str]) -> Iterator[Path]:
    """What a model may import of its own: files and folders beside its file."""
    for folder in folders:
        if not os.path.isdir(folder):
            continue
        for each in Path(folder).iterdir():
            is_module = each.suffix == ".py" or (each.is_dir() and (each / "__init__.py").is_file())
            if is_module and each != Path(path) and not each.name.startswith("__init__"):
                yield each


def offer_utilities() -> None:
    """The module that models import as `triton_python_backend_utils`. There is one for all: its functions find out who
    calls them."""
    for name, contents in _UTILITIES.items():
        if name not in sys.modules:
            module = ModuleType(name)
            vars(module).update(contents)
            sys.modules[name] = module


def place_of(module: ModuleType) -> str:
    """The file of a module; empty for one that has none."""
    names = getattr(module, "__dict__", {})  # some libraries' modules make up every attribute that they are asked for
    folders = list(names.get("__path__") or ())
    return names.get("__file__") or (f"{folders[0]}{os.sep}" if folders else "")


class InProcessWorker:
    """One instance's thread. `control` is its end of the socket pair; it keeps a copy.

    To be made in the thread that runs Trio.
    """

    noun = "thread in the server"
    killed_text = "was given up by the server"

    def __init__(
        self,
        model: InProcessModel,
        control: socket.socket,
        name: str,
        connect: Callable[[socket.socket], Connection] = Connection,
    ) -> None:
        self.session: Session | None = None  # of its thread, while that serves
        self._model = model
        self._name = name
        self._ended = trio.Event()
        self._end_text = ""
        self._is_closed = False
        self._is_given_up = False
        self._token = trio.lowlevel.current_trio_token()
        self._control = control.dup()
        self._connection = connect(self._control)
        model.places += 1
        threading.Thread(target=self._serve, name=f"model {name}", daemon=True).start()

    def _serve(self) -> None:
        """In the thread."""
        try:
            with self._control:
                session = self.session = open_session(self._model.session(self._connection))
                serve(session, self._model.maker)
            self._end_text = session.end_text or "ended"
            session.close()
            del session
        except BaseException as error:  # else nobody would hear of its end
            logger.exception("%s: its thread has failed", self._name)
            self._end_text = f"ended by {type(error).__name__}"
        self.session = None
        with suppress(trio.RunFinishedError):  # the server has not waited for it
            self._token.run_sync_soon(self._note_end)

    def _note_end(self) -> None:
        self._ended.set()
        if self._is_given_up:
            try:
                self._model.leave()
            except Exception:  # Trio would end the run by it
                logger.exception("%s: what its model has left cannot be put away", self._name)

    def resident_bytes(self) -> int | None:
        return None  # it cannot be told from the server

    @property
    def tail(self) -> list[str]:
        return []  # it prints to the server's own output

    def exit_text(self) -> str | None:
        return self._end_text or None

    async def wait_exit(self) -> None:
        await self._ended.wait()

    async def forward_output(self, tags_now: TagsNow) -> None:
        await trio.lowlevel.checkpoint()

    async def log_last_output(self, tags_now: TagsNow) -> None:
        await trio.lowlevel.checkpoint()

    def kill(self) -> None:
        """Hang up: it ends when the model next wants something of the server."""
        with suppress(OSError):  # it has ended
            self._control.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.kill()
        with trio.move_on_after(_END_SECONDS, shield=True):
            await self._ended.wait()
        if self._ended.is_set():
            self._model.leave()
        else:
            self._is_given_up = True
            logger.error(
                "%s: its thread does not end; what it holds stays until the server ends, or the model does", self._name
            )
