"""Worker launcher: starts the worker of each instance as a process, a thread or fork of a shared process, or a thread
here.

Flow: backend → [launcher] → a link to an instance's worker, of whichever kind. One per load, shared by its instances. A
cancelled launch leaves nothing behind.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from backends.affinity import bound_children
from backends.interface import ModelSource
from backends.model_log import model_log
from backends.python.environments.environment import Environment, find_environment
from backends.python.environments.program import needed_modules
from backends.python.in_loop.in_loop import InLoopWorker
from backends.python.settings import Isolation, PythonSettings
from backends.python.workers.fork_server import ForkServers
from backends.python.workers.host import Host, HostGone
from backends.python.workers.in_process import InProcessModel, InProcessWorker
from backends.python.workers.link import WorkerLink
from backends.python.workers.process import WorkerProcess
from backends.python.workers.runner import Runner
from protocol.errors import Internal, InvalidArgument
from repository.model_config import InstanceKind

# Its key in `ModelSource.shared`.
_KEY = "python.launcher"
# Its key in `ServerResources`.
_FORK_SERVERS = "python.fork_servers"


class WorkerLauncher:
    """One per load of a model version, shared by its instances. `load_head` is for the process that instances are
    forked from."""

    def __init__(self, source: ModelSource, bundled: Path | None) -> None:
        settings = PythonSettings.of(source)
        self._source = source
        self._bundled = bundled
        self._settings = settings
        self._log = model_log(source)
        self._starting = trio.Lock()
        self._host: Host | None = None
        self._in_process: InProcessModel | None = None

    @classmethod
    def of(cls, source: ModelSource, bundled: Path | None) -> WorkerLauncher:
        """The launcher of this load; `bundled` is the environment that its backend brings. Raises ServerError where the
        model's options are invalid."""
        found = source.shared.get(_KEY)
        if not isinstance(found, cls):
            found = source.shared[_KEY] = cls(source, bundled)
        return found

    async def own_process(
        self, name: str, cores: frozenset[int] = frozenset(), program: Path | None = None
    ) -> WorkerLink:
        """Launch a worker in a process of its own, whatever the isolation is; to serve this program, if any."""
        environment, imports = await trio.to_thread.run_sync(self._find, program, abandon_on_cancel=True)
        return await self._link(name, lambda control: self._start_process(environment, control, name, cores, imports))

    async def launch(
        self, name: str, kind: InstanceKind, load_head: Mapping[str, object], cores: frozenset[int] = frozenset()
    ) -> WorkerLink:
        """A worker for one instance, as the model's isolation says. Cancelled, it leaves nothing behind. A process of
        its own runs on these cores; a worker in a shared one is told of them by INITIALIZE.

        Raises:
            Internal: the interpreter cannot be started; the model fails in the process that instances are forked from.
            ServerError: the configuration asks for what cannot be.
        """
        isolation = self._settings.isolation
        if isolation is Isolation.PROCESS:
            return await self.own_process(name, cores, Path(str(load_head["path"])))
        if isolation in (Isolation.IN_PROCESS, Isolation.IN_LOOP):
            return await self._link(name, lambda control: self._start_thread(control, name))
        if isolation is Isolation.FORK:
            _check_fork(self._source, kind)

        async def start(control: socket.socket) -> Runner:
            async with self._starting:
                host = await self._shared_host(load_head)
                try:
                    if isolation is Isolation.THREADS:
                        return await host.thread(control)
                    return await host.fork(control)
                except HostGone as gone:
                    raise Internal(f"model '{self._source.name}': {gone}") from None
                finally:
                    if host.is_empty:
                        self._host = None
                        await host.close()

        return await self._link(name, start)

    async def _link(self, name: str, start: Callable[[socket.socket], Awaitable[Runner]]) -> WorkerLink:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                runner = await start(theirs)
            except BaseException:
                ours.close()
                raise
        services = self._source.services
        failures = None if services is None else services.failures
        return WorkerLink(ours, runner, self._settings, self._log.of_instance(name), name, failures)

    async def _start_process(
        self,
        environment: Environment,
        control: socket.socket,
        name: str,
        cores: frozenset[int],
        imports: Sequence[str],
    ) -> Runner:
        resources = self._source.resources
        if resources is not None and self._settings.has_fork_server:
            fork_servers = resources.find(_FORK_SERVERS, ForkServers)
            log = self._log.of_instance(name)
            worker = await fork_servers.start(environment, control, cores, imports, log, name)
            if worker is not None:
                return worker
        with self._startable(environment), bound_children(cores):
            return WorkerProcess(environment, control, self._log.of_instance(name), name)

    async def _start_thread(self, control: socket.socket, name: str) -> Runner:
        if self._in_process is None:
            self._in_process = InProcessModel()
        return thread_for(self._settings.isolation)(self._in_process, control, name)

    async def _shared_host(self, load_head: Mapping[str, object]) -> Host:
        if self._host is not None and self._host.is_usable:
            return self._host
        environment, _ = await trio.to_thread.run_sync(self._find, None, abandon_on_cancel=True)
        with self._startable(environment):
            host = Host(environment, self._log, self._source.name)
        try:
            if self._settings.isolation is Isolation.FORK:
                await host.load(load_head)
        except BaseException:
            await host.close()
            raise
        self._host = host
        return host

    def _find(self, program: Path | None) -> tuple[Environment, Sequence[str]]:
        """The environment, and modules that the program needs. Unpacking may take minutes; left alone, the thread ends
        by itself."""
        imports = () if program is None else needed_modules(program)
        return find_environment(self._source, self._bundled), imports

    @contextmanager
    def _startable(self, environment: Environment) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Internal(
                f"model '{self._source.name}': cannot start the interpreter '{environment.interpreter}': {error}"
            ) from error


def thread_for(isolation: Isolation) -> type[InProcessWorker]:
    """What serves an instance in the server's process."""
    return InLoopWorker if isolation is Isolation.IN_LOOP else InProcessWorker


def _check_fork(source: ModelSource, kind: InstanceKind) -> None:
    if kind is InstanceKind.GPU:
        raise InvalidArgument(
            f"model '{source.name}': ISOLATION is fork, which is for instances on the CPU: a GPU cannot be used on "
            "both sides of a fork"
        )
    if not sys.platform.startswith("linux"):
        raise InvalidArgument(f"model '{source.name}': ISOLATION fork is only for Linux")
