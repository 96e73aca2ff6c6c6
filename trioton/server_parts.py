"""Server parts: makes everything that one server consists of from its settings; nothing of it runs yet.

Part of the composition root; `trioton.server` owns the parts, starts them and stops them in order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from actors.cache.response_cache import ResponseCache
from actors.core.server_core import ServerCore
from actors.jobs.figures import RunnerFigures
from actors.metrics.custom import CustomMetrics
from actors.metrics.exemplars import Exemplars
from actors.metrics.gen_ai import GenAiMetrics
from actors.quotas.exchange import QuotaExchange
from actors.tracing.tracer import Tracer
from backends.devices.devices import Devices
from backends.registry import BackendRegistry
from protocol.access.keys_file import KeysFile
from protocol.failures import CallbackFailures
from protocol.jobs.keeping import JobKeeping
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.failure_log import FailureLog
from protocol.media.fetcher import MediaFetcher
from protocol.metrics_text import MetricsText
from protocol.open_connections import OpenConnections
from protocol.responses.background import Responses
from protocol.server_settings import LogControl
from protocol.shared_memory.table import SharedMemoryTable
from trioton.access_writer import AccessWriter
from trioton.capturing import capture_of, captured
from trioton.console import live_console, note_failed
from trioton.core_settings import core_settings
from trioton.edges import Shared
from trioton.gpus import Gpus
from trioton.load_report import load_report
from trioton.log.server_log import ServerLog
from trioton.loop_lag import LoopLag
from trioton.metrics.custom import is_own_name
from trioton.metrics.metrics import Metrics
from trioton.metrics.traced import note_trace
from trioton.settings import Address, Settings

if TYPE_CHECKING:
    from actors.jobs.jobs import ServerJobs
    from trioton.edge_processes.edges import EdgeProcesses


class ServerParts:
    """Those of one server. What is None at first may be set while it starts: `keys`, `quotas` and `jobs`.

    `leaving` is set when the server was told to stop, `addresses` are those bound so far.
    """

    def __init__(self, settings: Settings, log: LogControl | None) -> None:
        self.settings = settings
        cache = settings.cache()
        self.cache = ResponseCache(cache.name, cache.settings) if cache is not None else None
        self.failures = CallbackFailures()
        self.failure_log = FailureLog()
        custom = CustomMetrics(
            is_own_name,
            is_enabled=settings.allow_metrics,
            has_histograms=settings.shows_metrics("histogram_latencies"),
        )
        self.gen_ai = GenAiMetrics(custom) if settings.gen_ai_telemetry else None
        registry = BackendRegistry(directories=settings.backend_directory)
        self.stores = settings.stores(os.environ)
        devices = Devices(
            pinned_bytes=settings.pinned_memory_pool_byte_size,
            cuda_pool_bytes={each.device_id: each.byte_size for each in settings.cuda_memory_pool_byte_size},
            has_peer_access=settings.enable_peer_access,
        )
        media = settings.media()
        self.media = None if media is None else MediaFetcher(media)
        self.core = ServerCore(
            core_settings(settings, self.stores),
            registry,
            self.cache,
            custom,
            devices=devices,
            failures=self.failures,
            gen_ai=self.gen_ai,
            media=self.media,
        )
        exemplars = Exemplars()
        self.tracer = Tracer(settings.tracing(), self.core.is_model_ready, partial(note_trace, exemplars))
        self.log = log or ServerLog(settings)
        self.access = AccessWriter(settings.access_log)
        self.addresses: dict[str, Address] = {}
        self.limits = LimitCounter()
        self.keys: KeysFile | None = None
        self.quotas: QuotaExchange | None = None
        self.capture = capture_of(settings)
        self.gpus = Gpus(settings.metrics_interval_ms / 1000) if settings.allow_gpu_metrics else None
        self.lag = LoopLag()
        self.connections = OpenConnections()
        self.metrics = self._made_metrics(custom, devices, exemplars)
        self.metrics_text = MetricsText(self.metrics.render)
        self.shared_memory = SharedMemoryTable(allow_registration=settings.allow_client_shm)
        self.responses = Responses(settings.openai_store_bytes, settings.openai_store_secs, self.failures)
        self.memory = RequestMemory(settings.request_memory())
        self.console = live_console(settings, self.core, self.failures, self.failure_log, self._job_figures)
        self.edge_processes = self._made_edge_processes()
        self.jobs: ServerJobs | None = None
        self.keeping = JobKeeping(is_awaited=True)
        self.leaving = trio.Event()

    def shared(self) -> Shared:
        """What its edges have in common."""
        return Shared(
            core=captured(self.core, self.capture),
            shared_memory=self.shared_memory,
            limits=self.limits,
            memory=self.memory,
            log=self.log,
            trace=self.tracer if self.edge_processes is None else self.edge_processes.tracing,
            keys=self.keys,
            leaving=self.leaving,
            metrics=self.metrics_text,
            connections=self.connections,
            load_report=partial(load_report, self.core),
            addresses=self.addresses,
            failures=self.failures,
            failure_log=self.failure_log,
            access_log=self.access.log,
            gen_ai=self.gen_ai,
            responses=self.responses,
            media=self.media,
            console=self.console,
            keeping=self.keeping,
        )

    def _made_metrics(self, custom: CustomMetrics, devices: Devices, exemplars: Exemplars) -> Metrics:
        settings = self.settings
        return Metrics(
            self.core.snapshots,
            interval=settings.metrics_interval_ms / 1000,
            limits=self.limits,
            failures=self.failures,
            lost_traces=lambda: self.tracer.lost_count,
            lost_lines=self._lost_lines,
            capture=self.capture,
            keys=lambda: {} if self.keys is None else self.keys.ledger.usage(),
            log_events=self._log_events,
            loads=self.core.loads,
            lag=self.lag,
            connections=self.connections,
            has_counters=settings.shows_metrics("counter_latencies"),
            custom=custom.values,
            has_cpu=settings.allow_cpu_metrics,
            gpus=self.gpus,
            residence=self.core.residence,
            devices=devices,
            exemplars=exemplars,
            jobs=self._job_figures,
            quotas=lambda: None if self.quotas is None else self.quotas.figures,
            edges=lambda: () if self.edge_processes is None else self.edge_processes.readings(),
        )

    def _made_edge_processes(self) -> EdgeProcesses | None:
        if not self.settings.edge_processes:
            return None
        from trioton.edge_processes.edges import EdgeProcesses  # some megabyte that most servers do not need

        return EdgeProcesses(
            self.settings,
            limits=self.limits,
            failures=self.failures,
            connections=self.connections,
            memory=self.memory,
            core=captured(self.core, self.capture),
            tracer=self.tracer,
            gen_ai=self.gen_ai,
            log_access=self.access.put_lines,
            note_failed=partial(note_failed, self.console),
        )

    def _log_events(self) -> Mapping[str, int]:
        return self.log.events() if isinstance(self.log, ServerLog) else {}

    def _lost_lines(self) -> Mapping[str, int]:
        lost = {"server": self.log.lost} if isinstance(self.log, ServerLog) else {}
        if (of_access := self.access.lost) is not None:
            lost["access"] = of_access
        return lost

    def _job_figures(self) -> RunnerFigures | None:
        return None if self.jobs is None else self.jobs.figures
