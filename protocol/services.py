"""What the composition root passes to an edge: the core, and the services that both edges share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.access.told_keys import ToldKeys
from protocol.console.interface import Console
from protocol.core import InferenceCore
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.jobs.batches.service import Batches
from protocol.jobs.keeping import JobKeeping
from protocol.jobs.service import Jobs
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.access_log import OFF, AccessLog
from protocol.log.failure_log import FailureLog
from protocol.log.request_ids import RequestIds
from protocol.media.fetcher import MediaFetcher
from protocol.metrics_text import MetricsText
from protocol.open_connections import OpenConnections
from protocol.responses.background import Responses
from protocol.server_settings import LogControl, TraceControl
from protocol.shared_memory.table import SharedMemoryTable


@dataclass(frozen=True, slots=True)
class EdgeServices:
    """`access` and `forwarding` are the edge's own, the rest is shared. `load_report` gives the load figures of a model
    by name, for load balancers, and `metrics` the text of the metrics; `connections` counts those that are open;
    `gen_ai` is there if calls of generative models are to be observed; `addresses` are those bound so far, by the
    words of their flags; `responses` are those that the OpenAI interface keeps, `media` fetches what clients
    name by URLs, if that is allowed, `console` is there if it was asked for, and `keeping` has jobs and batches, if the
    server keeps any."""

    core: InferenceCore
    shared_memory: SharedMemoryTable
    access: AccessControl
    forwarding: HeaderForwarding
    limits: LimitCounter
    memory: RequestMemory
    log: LogControl
    trace: TraceControl
    load_report: Callable[[str], Mapping[str, float]] | None = None
    metrics: MetricsText | None = None
    connections: OpenConnections = field(default_factory=OpenConnections)
    addresses: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    failures: CallbackFailures = field(default_factory=CallbackFailures)
    failure_log: FailureLog = field(default_factory=FailureLog)
    request_ids: RequestIds = field(default_factory=RequestIds)
    access_log: AccessLog = OFF
    gen_ai: GenAi | None = None
    responses: Responses = field(default_factory=Responses)
    media: MediaFetcher | None = None
    console: Console | None = None
    keeping: JobKeeping = field(default_factory=JobKeeping)

    @property
    def jobs(self) -> Jobs | None:
        return self.keeping.jobs

    @property
    def batches(self) -> Batches | None:
        return self.keeping.batches


Know = Callable[[str, int, tuple[str, ...]], Awaitable[None]]
"""Has at hand what inference asks of a model of that name and version, and of these outputs: `ModelFacts.know`."""


@dataclass(frozen=True, slots=True)
class Linked:
    """What an edge in another process than the core has of the link to it: the services that it runs inference by,
    the keys of clients, if there are any, and what is known of models."""

    services: EdgeServices
    keys: ToldKeys | None
    know: Know
