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
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from actors.cache.registry import UnusableCache
from actors.cache.response_cache import ResponseCache
from actors.capture.capture import CannotCapture
from actors.core.server_core import ServerCore
from actors.jobs.figures import RunnerFigures
from actors.jobs.jobs import ServerJobs
from actors.metrics.custom import CustomMetrics
from actors.metrics.exemplars import Exemplars
from actors.metrics.gen_ai import GenAiMetrics
from actors.quotas.exchange import QuotaExchange
from actors.tracing.sink import CannotTrace
from actors.tracing.tracer import Tracer
from backends.devices.devices import Devices
from backends.registry import BackendRegistry
from protocol.access.keys import ANONYMOUS
from protocol.access.keys_file import KeysFile
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
from protocol.failures import CallbackFailures
from protocol.jobs.keeping import JobKeeping
from protocol.jobs.store import UnusableStore
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.failure_log import FailureLog
from protocol.media.fetcher import MediaFetcher
from protocol.metrics_text import MetricsText
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import Arrivals
from protocol.reactor.drivers import the_poller
from protocol.responses.background import Responses
from protocol.server_settings import LogControl, LogSettings
from protocol.shared_memory.table import SharedMemoryTable
from trioton.access_writer import AccessWriter
from trioton.capturing import capture_of, captured
from trioton.console import live_console, log_tail, note_failed
from trioton.core_settings import core_settings
from trioton.edge_processes.edges import OWN_WORDS, EdgeProcesses, EdgeStartError
from trioton.edges import Edge, Shared, edges, services_of_batches
from trioton.ending import Ending, ExitTimeoutExpired
from trioton.flags import UsageError
from trioton.gpus import Gpus
from trioton.in_process import Models
from trioton.job_service import start_jobs
from trioton.job_webhooks import UnusableSecrets
from trioton.jobs import Jobs
from trioton.load_report import load_report
from trioton.log.formats import VERBATIM
from trioton.log.server_log import ServerLog, logging_to
from trioton.loop_lag import LoopLag, LoopWatchdog
from trioton.metrics.custom import is_own_name
from trioton.metrics.metrics import Metrics
from trioton.metrics.traced import note_trace
from trioton.quota_service import UnusableQuotaStore, quota_exchange
from trioton.reload import Reloader
from trioton.settings import Address, Settings
from trioton.start_checks import StartError, check_loads, check_repositories, check_vertex_ai
from trioton.start_files import StartFiles
from trioton.tables import model_table

if TYPE_CHECKING:
    from trioton.metrics.export import MetricsExport

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

# Triton's words for the services, as its log has them.
SERVICE_NAMES = {
    "grpc": "GRPCInferenceService",
    "http": "HTTPService",
    "openai": "OpenAI frontend",
    "sagemaker": "Sagemaker HTTPService",
    "vertex-ai": "Vertex AI HTTPService",
    "metrics": "Metrics Service",
}


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
        cache = settings.cache()
        self.cache = ResponseCache(cache.name, cache.settings) if cache is not None else None
        self._failures = CallbackFailures()
        self._failure_log = FailureLog()
        custom = CustomMetrics(
            is_own_name,
            is_enabled=settings.allow_metrics,
            has_histograms=settings.shows_metrics("histogram_latencies"),
        )
        self._gen_ai = GenAiMetrics(custom) if settings.gen_ai_telemetry else None
        registry = BackendRegistry(directories=settings.backend_directory)
        self._stores = settings.stores(os.environ)
        devices = Devices(
            pinned_bytes=settings.pinned_memory_pool_byte_size,
            cuda_pool_bytes={each.device_id: each.byte_size for each in settings.cuda_memory_pool_byte_size},
            has_peer_access=settings.enable_peer_access,
        )
        media = settings.media()
        self._media = None if media is None else MediaFetcher(media)
        self.core = ServerCore(
            core_settings(settings, self._stores),
            registry,
            self.cache,
            custom,
            devices=devices,
            failures=self._failures,
            gen_ai=self._gen_ai,
            media=self._media,
        )
        exemplars = Exemplars()
        self.tracer = Tracer(settings.tracing(), self.core.is_model_ready, partial(note_trace, exemplars))
        self.log = log or ServerLog(settings)
        self._access = AccessWriter(settings.access_log)
        self.addresses: dict[str, Address] = {}
        self._limits = LimitCounter()
        self._keys: KeysFile | None = None  # from `run` on
        self._quotas: QuotaExchange | None = None
        self._capture = capture_of(settings)
        self._gpus = Gpus(settings.metrics_interval_ms / 1000) if settings.allow_gpu_metrics else None
        self._export: MetricsExport | None = None
        self._lag = LoopLag()
        self._connections = OpenConnections()
        self._metrics = Metrics(
            self.core.snapshots,
            interval=settings.metrics_interval_ms / 1000,
            limits=self._limits,
            failures=self._failures,
            lost_traces=lambda: self.tracer.lost_count,
            lost_lines=self._lost_lines,
            capture=self._capture,
            keys=lambda: {} if self._keys is None else self._keys.ledger.usage(),
            log_events=self._log_events,
            loads=self.core.loads,
            lag=self._lag,
            connections=self._connections,
            has_counters=settings.shows_metrics("counter_latencies"),
            custom=custom.values,
            has_cpu=settings.allow_cpu_metrics,
            gpus=self._gpus,
            residence=self.core.residence,
            devices=devices,
            exemplars=exemplars,
            jobs=self._job_figures,
            quotas=lambda: None if self._quotas is None else self._quotas.figures,
            edges=lambda: () if self._edge_processes is None else self._edge_processes.readings(),
        )
        self._metrics_text = MetricsText(self._metrics.render)
        self._shared_memory = SharedMemoryTable(allow_registration=settings.allow_client_shm)
        self._responses = Responses(settings.openai_store_bytes, settings.openai_store_secs, self._failures)
        self._ending = Ending(
            self.core, self._responses, drain_secs=settings.drain_secs, exit_timeout_secs=settings.exit_timeout_secs
        )
        self._memory = RequestMemory(settings.request_memory())
        self._console = live_console(settings, self.core, self._failures, self._failure_log, self._job_figures)
        self._edge_processes = self._edge_processes_of(settings)
        self._jobs: ServerJobs | None = None
        self._keeping = JobKeeping(is_awaited=True)
        self._stop = trio.Event()
        self._leaving = trio.Event()
        self._close_edges = trio.Event()
        self._close_relayed = trio.Event()  # the edges behind edge processes
        self._close_metrics = trio.Event()
        self.listening = trio.Event()
        self.started = trio.Event()
        self._scope = trio.CancelScope()

    def _log_events(self) -> Mapping[str, int]:
        return self.log.events() if isinstance(self.log, ServerLog) else {}

    def _lost_lines(self) -> Mapping[str, int]:
        lost = {"server": self.log.lost} if isinstance(self.log, ServerLog) else {}
        if (of_access := self._access.lost) is not None:
            lost["access"] = of_access
        return lost

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
        if self._jobs is None:
            raise Unsupported("jobs need a place where they are kept: set jobs_store")
        return Jobs(self._jobs, self.core, ANONYMOUS)

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
            log_tail(self._console),
            self._scope,
        ):
            for notice in self.settings.notices():
                logger.warning("%s", notice)
            await check_repositories(self.settings, self._stores)
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
                            await self._open_services(files, nursery, metrics, background)
                            await nursery.start(self.core.run)
                            await self._start_jobs(files.keys, background)
                            await self._wait_for_edges()
                            await self._start_serving()
                        except StartError as error:  # raised below, outside the nursery, after an orderly end
                            failure = error
                            self.core.stop()
                        else:
                            if reloader is not None:
                                background.start_soon(reloader.run)
                            task_status.started()
                            await self._stop.wait()
                            if self._export is not None:
                                await self._export.collect()
                            await self._ending.run(self._scope, background)
                        self._close_edges.set()
                    self._close_metrics.set()
                background.cancel_scope.cancel()  # helpers without an end of their own
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._access.close)
        self._failure_log.close()
        self._shared_memory.close()
        self._stores.cache.close()
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
        self._leaving.set()
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
        reloader = Reloader(self.core, self.settings.model, self._failures)
        await reloader.look()
        return reloader

    async def _start_helpers(self, background: trio.Nursery) -> None:
        helpers = {"--trace-config": self.tracer, "--cache-config": self.cache, "--capture": self._capture}
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
        self._access.reopen()

    def _open_access_log(self) -> None:
        try:
            self._access.open(self.log.writers if isinstance(self.log, ServerLog) else ())
        except OSError as error:
            file = self.settings.access_log.file
            raise StartError(f"cannot write the access log to '{file}': {error.strerror}; see --access-log") from None

    def _job_figures(self) -> RunnerFigures | None:
        return None if self._jobs is None else self._jobs.figures

    async def _start_jobs(self, keys: KeysFile | None, background: trio.Nursery) -> None:
        try:
            services = services_of_batches(self._shared(keys))
            started = await start_jobs(self.settings, self.core, keys, services, self._failures, background)
        except UnusableStore as error:
            raise StartError(f"{error}; see --jobs-store") from None
        except UnusableSecrets as error:
            raise StartError(f"the secrets of webhooks: {error}; see --jobs-webhook-secret-file") from None
        self._jobs = self._ending.jobs = started.jobs
        keeping = self._keeping
        keeping.jobs, keeping.batches, keeping.is_awaited = started.jobs, started.batches, False

    async def _wait_for_edges(self) -> None:
        """Nobody is told that the server is ready before it can be reached."""
        if self._edge_processes is None:
            return
        try:
            await self._edge_processes.wait_serving()
        except EdgeStartError as error:
            raise StartError(f"{error}; see --edge-processes") from None

    async def _start_serving(self) -> None:
        """What is to be done when the models are loaded."""
        logger.info("%s", await self.model_table(), extra=VERBATIM)
        if self.settings.exit_on_error:
            check_loads(await self.core.repository_index(), self.settings)
        if self.settings.allow_vertex_ai:
            check_vertex_ai(await self.core.repository_index(ready=True), self.settings)
        self._memory.limit = self.settings.request_memory()  # of what the models have left
        for word, address in self.addresses.items():
            logger.info("Started %s at %s", SERVICE_NAMES[word], address_text(address))
        self.core.holds_readiness = False
        self.started.set()

    async def _open_services(
        self, files: StartFiles, nursery: trio.Nursery, metrics: trio.Nursery, background: trio.Nursery
    ) -> None:
        """Before the models are loaded, so that whoever watches the server sees that it lives, and how far it is."""
        if self._gpus is not None and self.settings.allow_metrics:
            await background.start(self._gpus.run)
        self._keys = files.keys
        if self.settings.allow_metrics or self.settings.metrics_export_url:
            background.start_soon(self._lag.run)
        if self.settings.metrics_export_url:
            self._export = self._metrics_export()
            background.start_soon(self._export.run)
        if files.keys is not None:
            background.start_soon(files.keys.watch, self._failures)
        await self._start_quotas(files.keys, background)
        background.start_soon(self._responses.run)
        if self._console is not None:
            background.start_soon(self._console.sampler.run, self._leaving)
        relayed = await self._open_edge_processes(nursery)
        opening = edges(self.settings, replace(self._shared(files.keys), relayed=relayed), files.tls)
        for word, edge in opening.items():
            is_metrics = word == "metrics"
            close = self._close_relayed if word in relayed else self._close_edges
            close = self._close_metrics if is_metrics else close
            self.addresses[word] = await self._open(word, edge, metrics if is_metrics else nursery, close)
        if opening:
            places = (f"{SERVICE_NAMES[word]} at {address_text(address)}" for word, address in self.addresses.items())
            logger.info("Listening, and not ready until the models are loaded: %s", ", ".join(places))
        self.listening.set()

    def _edge_processes_of(self, settings: Settings) -> EdgeProcesses | None:
        if not settings.edge_processes:
            return None
        return EdgeProcesses(
            settings,
            limits=self._limits,
            failures=self._failures,
            connections=self._connections,
            memory=self._memory,
            core=captured(self.core, self._capture),
            tracer=self.tracer,
            log_access=self._access.put_lines,
            note_failed=partial(note_failed, self._console),
        )

    async def _open_edge_processes(self, nursery: trio.Nursery) -> Mapping[str, Arrivals]:
        """Listen for what edge processes serve, and start them: where their connections to the core come from."""
        processes = self._edge_processes
        if processes is None:
            return {}
        found: dict[str, Arrivals] = {}
        for word, address in self.settings.services().items():
            if word not in OWN_WORDS:
                with self._listening(word):
                    await processes.open(word, address)
                found[word] = processes.relayed(word)
        self.core.models_changed = processes.models_changed
        if self._keys is not None:
            processes.take_keys(self._keys)
            self._keys.on_change = processes.keys_changed
        nursery.start_soon(self._run_edge_processes, processes)
        return found

    async def _run_edge_processes(self, processes: EdgeProcesses) -> None:
        try:
            await processes.run(self._leaving, self._close_edges)
        finally:
            self._close_relayed.set()

    async def _start_quotas(self, keys: KeysFile | None, background: trio.Nursery) -> None:
        try:
            self._quotas = quota_exchange(self.settings, keys, self._failures)
        except UnusableQuotaStore as error:
            raise StartError(f"{error}; see --quota-store") from None
        if self._quotas is not None:
            await background.start(self._quotas.run)

    def _metrics_export(self) -> MetricsExport:
        try:
            from trioton.metrics.export import MetricsExport
        except ImportError as error:
            raise StartError(
                f"--metrics-export-url needs the extra 'trace' ({error}): pip install trioton[trace]"
            ) from None
        interval = self.settings.metrics_export_interval_ms / 1000
        return MetricsExport(self._metrics.sources, self.settings.metrics_export_url, interval)

    async def _read_files(self) -> StartFiles:
        """Certificates and keys are read before the models, whose loading may take long."""
        return await trio.to_thread.run_sync(StartFiles.read, self.settings)

    def _shared(self, keys: KeysFile | None) -> Shared:
        return Shared(
            core=captured(self.core, self._capture),
            shared_memory=self._shared_memory,
            limits=self._limits,
            memory=self._memory,
            log=self.log,
            trace=self.tracer if self._edge_processes is None else self._edge_processes.tracing,
            keys=keys,
            leaving=self._leaving,
            metrics=self._metrics_text,
            connections=self._connections,
            load_report=partial(load_report, self.core),
            addresses=self.addresses,
            failures=self._failures,
            failure_log=self._failure_log,
            access_log=self._access.log,
            gen_ai=self._gen_ai,
            responses=self._responses,
            media=self._media,
            console=self._console,
            keeping=self._keeping,
        )

    async def _open(self, word: str, edge: Edge, nursery: trio.Nursery, close: trio.Event) -> Address:
        with self._listening(word):
            # Only the two that a client sees matter; an IPv6 address has more parts.
            host, port, *_ = await nursery.start(edge, close)
        return host, port

    @contextmanager
    def _listening(self, word: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            wanted = address_text(self.settings.services()[word])
            raise StartError(
                f"cannot listen on {wanted} for {SERVICE_NAMES[word]}: {_reason(error)}; "
                f"choose another address with --{word}-address or --{word}-port"
            ) from None


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


def address_text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    """Why an address cannot be had, in the system's words."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
