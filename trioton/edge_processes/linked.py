"""What an edge process answers with the core's help over shared memory, in place of relaying it: plain inference.

The edges' fast paths do so, and pass on whatever is not plain; what they pass on is relayed.
"""

from __future__ import annotations

from typing import cast

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.core import InferenceCore
from protocol.edge_link.linked_core import LinkedCore
from protocol.failures import CallbackFailures
from protocol.http.app import HttpApp
from protocol.http.direct_infer import DirectHead, DirectInference
from protocol.http.head import Head
from protocol.http.routes import route_table
from protocol.http.settings import HttpSettings
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.access_log import AccessMode
from protocol.server_settings import LogControl, TraceControl
from protocol.services import EdgeServices
from protocol.shared_memory.table import SharedMemoryTable
from trioton.settings import Settings


def linked_words(settings: Settings) -> frozenset[str]:
    """The services whose plain inference edge processes answer: where nothing that the core's process alone has is
    asked for each request. Access to it, its lines in logs, and what is kept of it are such."""
    if (
        settings.auth_keys_file is not None
        or settings.access_log.policy.mode is not AccessMode.OFF
        or settings.console
        or settings.capture is not None
        or settings.debug_delays.holds_calls
    ):
        return frozenset()
    found: set[str] = set()
    if not settings.http_restricted_api and settings.http_header_forward_pattern is None:
        found.add("http")
    if (
        not settings.grpc_restricted_protocol
        and settings.grpc_header_forward_pattern is None
        and settings.grpc_infer_response_compression_level == "none"
    ):
        found.add("grpc")
    return frozenset(found)


class Tracing:
    """Whether the core samples requests for traces: then all are relayed. The part of `TraceControl` that the fast
    paths ask for."""

    def __init__(self) -> None:
        self.is_sampling = True  # until the core has said so


def linked_services(
    core: LinkedCore,
    tracing: Tracing,
    limits: LimitCounter,
    memory: RequestMemory,
    failures: CallbackFailures,
) -> EdgeServices:
    """Those of fast paths: nobody is refused, and no region of shared memory is known."""
    return EdgeServices(
        core=cast(InferenceCore, core),
        shared_memory=SharedMemoryTable(allow_registration=False),
        access=AccessControl(),
        forwarding=HeaderForwarding(),
        limits=limits,
        memory=memory,
        log=cast(LogControl, None),  # not asked for by fast paths
        trace=cast(TraceControl, tracing),
        failures=failures,
    )


class LinkedInference(DirectInference):
    """Also passes on what may be meant for the core's jobs."""

    @classmethod
    def of(cls, services: EdgeServices, settings: HttpSettings) -> LinkedInference:
        return cls(HttpApp(services, settings, route_table(settings.interface, has_console=False, has_metrics=False)))

    def head(self, head: Head, data: bytes) -> DirectHead | None:
        return None if b"prefer" in head.headers else super().head(head, data)
