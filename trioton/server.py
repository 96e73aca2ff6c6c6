"""Public: a server inside a program that runs on Trio, beside its other work. There may be several in one process.

    from trioton.messages import InferenceRequest, Tensor
    from trioton.server import Settings, open_server

    async with open_server(Settings(model_repository=(Path("models"),), http_port=0)) as server:
        host, port = server.addresses["http"]
        tensor = Tensor.from_numpy("IN", np.ones((1, 16), np.float32))
        response = await server.models.infer(InferenceRequest("my_model", [tensor]))
        print(response.outputs[0].as_numpy())

The server is the composition root that starts the actors and the edges, and stops them in order:

    Settings → [Server] → ServerCore (the models), then gRPC, HTTP, OpenAI's port and metrics in front of it
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from actors.cache.registry import UnusableCache
from actors.capture.capture import CannotCapture
from actors.tracing.sink import CannotTrace
from protocol.access.keys import ANONYMOUS
from protocol.core import (
    InferBatchStatistics,
    InferResponseStatistics,
    InferStatistics,
    LoadParameters,
    MemoryUsage,
    ModelIndex,
    ModelMetadata,
    ModelStatistics,
    Respond,
    ServerMetadata,
    StatisticDuration,
    TensorMetadata,
)
from protocol.errors import Unsupported
from protocol.reactor.drivers import the_poller
from protocol.server_settings import LogControl, LogSettings
from trioton.console import log_tail
from trioton.edges import services_of_batches
from trioton.ending import Ending, ExitTimeoutExpired
from trioton.flags.fields import UsageError
from trioton.in_process import Models
from trioton.log.formats import VERBATIM
from trioton.log.server_log import ServerLog, logging_to
from trioton.loop_lag import LoopWatchdog
from trioton.opening import Opening
from trioton.reload import Reloader
from trioton.server_parts import ServerParts
from trioton.service_names import SERVICE_NAMES, address_text
from trioton.settings import Address, Settings
from trioton.start_checks import StartError, check_loads, check_repositories, check_vertex_ai
from trioton.start_files import StartFiles
from trioton.tables import model_table

if TYPE_CHECKING:
    from trioton.jobs import Jobs

__all__ = [
    "Address",
    "ExitTimeoutExpired",
    "InferBatchStatistics",
    "InferResponseStatistics",
    "InferStatistics",
    "LoadParameters",
    "LogControl",
    "LogSettings",
    "MemoryUsage",
    "ModelIndex",
    "ModelMetadata",
    "ModelStatistics",
    "Models",
    "Respond",
    "Server",
    "ServerMetadata",
    "Settings",
    "StartError",
    "StatisticDuration",
    "TensorMetadata",
    "UsageError",
    "logging_to",
    "open_server",
]

logger = logging.getLogger(__name__)


class Server:
    """One server, good for one `run`. `open_server` is the short way to one.

    It logs by `logging`, to the loggers of the program, and leaves signals to the program. Attributes that are not
    described here are private.

    Attributes:
        settings: as given.
        listening: set when every service listens; the models are still to be loaded.
        started: set when the models are loaded, and every service serves.
        addresses: where the services listen, by "grpc", "http", "openai", "sagemaker", "vertex-ai" and "metrics";
            complete before the models are loaded.

    Args:
        settings: all that can be configured.
        log: what clients change by the log settings of the protocol, see `logging_to`. Without it their changes are
            checked and remembered, and have no effect on the program's log.
    """

    def __init__(self, settings: Settings, log: LogControl | None = None) -> None:
        self.settings = settings
        self._parts = parts = ServerParts(settings, log)
        self.core = parts.core
        self.cache = parts.cache
        self.tracer = parts.tracer
        self.connections = parts.connections
        self.memory = parts.memory
        self.log = parts.log
        self.addresses = parts.addresses
        self._opening = Opening(parts)
        self._ending = Ending(
            self.core, parts.responses, drain_secs=settings.drain_secs, exit_timeout_secs=settings.exit_timeout_secs
        )
        self._stop = trio.Event()
        self.listening = trio.Event()
        self.started = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def models(self) -> Models:
        """The server's models, to be called in this process; while the server runs."""
        return self.core

    @property
    def jobs(self) -> Jobs:
        """The server's jobs, to be called in this process; while the server runs.

        Raises:
            Unsupported: it takes none (`jobs_store`).
        """
        if self._parts.jobs is None:
            raise Unsupported("jobs need a place where they are kept: set jobs_store")
        from trioton.jobs import Jobs

        return Jobs(self._parts.jobs, self.core, ANONYMOUS)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, load the models, and serve until `stop`; to be started by `await nursery.start(server.run)`.

        Started when the models are loaded. Until then the services answer what asks for health, metrics and what is
        there, and refuse requests for models. Cancelled: stops everything now, without waiting for requests, and still
        unloads the models; nothing is left.

        Raises:
            StartError: no such repository, a model that failed to load (with `exit_on_error`), a port that cannot be
                opened, tracing that cannot start.
            ExitTimeoutExpired: see `stop`.
        """
        failure: StartError | None = None
        poller = the_poller(self.settings.poller)
        with (
            poller.busy.limited_to(self.settings.busy_poll_seconds()),
            log_tail(self._parts.console),
            self._scope,
        ):
            for notice in self.settings.notices():
                logger.warning("%s", notice)
            await check_repositories(self.settings, self._parts.stores)
            files = await self._read_files()
            reloader = await self._reloader()
            async with trio.open_nursery() as background:
                if self.settings.debug_loop_lag_ms:
                    background.start_soon(LoopWatchdog(self.settings.debug_loop_lag_ms / 1000).run)
                async with trio.open_nursery() as metrics:  # shown until all the others have ended
                    async with trio.open_nursery() as nursery:
                        try:
                            self._open_access_log()
                            await self._start_helpers(background)
                            self.core.holds_readiness = True  # until jobs are taken
                            await self._opening.open(files, nursery, metrics, background)
                            self.listening.set()
                            await nursery.start(self.core.run)
                            await self._start_jobs(background)
                            await self._opening.wait_for_edge_processes()
                            await self._start_serving()
                        except StartError as error:  # raised below, outside the nursery, after an orderly end
                            failure = error
                            self.core.stop()
                        else:
                            if reloader is not None:
                                background.start_soon(reloader.run)
                            task_status.started()
                            await self._stop.wait()
                            if self._opening.export is not None:
                                await self._opening.export.collect()
                            await self._ending.run(self._scope, background)
                        self._opening.close.set()
                    self._opening.close_metrics.set()
                background.cancel_scope.cancel()  # helpers without an end of their own
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._parts.access.close)
        self._parts.failure_log.close()
        self._parts.shared_memory.close()
        self._parts.stores.cache.close()
        if failure is not None:
            raise failure
        if self._scope.cancelled_caught and self.started.is_set():
            raise ExitTimeoutExpired(self.cut_off)

    def stop(self) -> None:
        """Say that the server is not ready, go on answering for `drain_secs`, then refuse new work, finish what was
        accepted, unload the models, and return from `run`.

        The latter takes `exit_timeout_secs` at most; what is left then is cancelled. A server that is still loading
        gives up at once.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._parts.leaving.set()
        if self.started.is_set():
            self._ending.begin()  # from now on, not only when `run` gets its turn
        else:
            self._scope.cancel()

    @property
    def cut_off(self) -> int:
        """How many requests were under way when the exit timeout expired."""
        return self._ending.cut_off

    async def model_table(self) -> str:
        """The models, their versions and how they fare, as a table."""
        return model_table(await self.core.repository_index())

    async def _reloader(self) -> Reloader | None:
        """Made before the model is loaded, so that no change is missed."""
        if self.settings.model is None or not self.settings.reload:
            return None
        reloader = Reloader(self.core, self.settings.model, self._parts.failures)
        await reloader.look()
        return reloader

    async def _start_helpers(self, background: trio.Nursery) -> None:
        helpers = {"--trace-config": self.tracer, "--cache-config": self.cache, "--capture": self._parts.capture}
        for option, helper in helpers.items():
            try:
                if helper is not None:
                    await background.start(helper.run)
            except (CannotTrace, UnusableCache, CannotCapture) as error:
                raise StartError(f"{error}; see {option}") from None

    def reopen_logs(self) -> None:
        """Go on in new files, after log files were moved away."""
        if isinstance(self.log, ServerLog):
            self.log.reopen()
        self._parts.access.reopen()

    def _open_access_log(self) -> None:
        try:
            self._parts.access.open(self.log.writers if isinstance(self.log, ServerLog) else ())
        except OSError as error:
            file = self.settings.access_log.file
            raise StartError(f"cannot write the access log to '{file}': {error.strerror}; see --access-log") from None

    async def _start_jobs(self, background: trio.Nursery) -> None:
        keeping = self._parts.keeping
        if self.settings.jobs_store is None:
            keeping.is_awaited = False
            return
        from protocol.jobs.store import UnusableStore  # some megabyte that most servers do not need
        from trioton.job_service import start_jobs
        from trioton.job_webhooks import UnusableSecrets

        try:
            services = services_of_batches(self._parts.shared())
            place, keys, failures = self.settings.jobs_store, self._parts.keys, self._parts.failures
            started = await start_jobs(place, self.settings, self.core, keys, services, failures, background)
        except UnusableStore as error:
            raise StartError(f"{error}; see --jobs-store") from None
        except UnusableSecrets as error:
            raise StartError(f"the secrets of webhooks: {error}; see --jobs-webhook-secret-file") from None
        self._parts.jobs = self._ending.jobs = started.jobs
        keeping.jobs, keeping.batches, keeping.is_awaited = started.jobs, started.batches, False

    async def _start_serving(self) -> None:
        """What is to be done when the models are loaded."""
        logger.info("%s", await self.model_table(), extra=VERBATIM)
        if self.settings.exit_on_error:
            check_loads(await self.core.repository_index(), self.settings)
        if self.settings.allow_vertex_ai:
            check_vertex_ai(await self.core.repository_index(ready=True), self.settings)
        self._parts.memory.limit = self.settings.request_memory()  # of what the models have left
        for word, address in self.addresses.items():
            logger.info("Started %s at %s", SERVICE_NAMES[word], address_text(address))
        self.core.holds_readiness = False
        self.started.set()

    async def _read_files(self) -> StartFiles:
        """Certificates and keys are read before the models, whose loading may take long."""
        return await trio.to_thread.run_sync(StartFiles.read, self.settings)


@asynccontextmanager
async def open_server(settings: Settings) -> AsyncIterator[Server]:
    """A running server for the time of a block, at whose end it is stopped in order, see `Server.stop`. Cancelled: it
    is stopped at once, and its models are unloaded.

    Raises:
        StartError, ExitTimeoutExpired: as from `Server.run`; like whatever the block raises, in an ExceptionGroup.
    """
    server = Server(settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        server.stop()
