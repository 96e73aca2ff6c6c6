"""Triton's debugging variables (`TRITONSERVER_DELAY_*`): artificial delays in schedulers and gRPC calls, for tests.

`settings_from` reads them once; where none is set, nothing of this is in the server. Source: the variables
TRITONSERVER_…DELAY_… of Triton's schedulers and of its gRPC frontend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from actors.scheduling.batching.held import SchedulerHold
from trioton.flags.fields import UsageError

# Each variable's field. Where a field has several, Triton has them at steps that are one here, and they add up.
VARIABLES = {
    "TRITONSERVER_DELAY_SCHEDULER": "requests",
    "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "backlog",
    "TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY": "process_ms",
    "TRITONSERVER_DELAY_GRPC_PROCESS": "process_ms",
    "TRITONSERVER_DELAY_GRPC_RESPONSE": "response_ms",
    "TRITONSERVER_DELAY_GRPC_COMPLETE": "complete_ms",
    "TRITONSERVER_DELAY_RESPONSE_COMPLETE_EXEC": "completion_ms",
    "TRITONSERVER_DELAY_RESPONSE_COMPLETION": "completion_ms",
    "TRITONSERVER_DELAY_GRPC_NOTIFICATION": "cancel_ms",
    "TRITONSERVER_DELAY_GRPC_ENQUEUE": "cancel_ms",
}


@dataclass(frozen=True, slots=True)
class DebugDelays:
    """Counts of requests for schedulers; milliseconds for gRPC calls: before a request is given to its model, before
    each response of a decoupled one is sent, before such a request is over, before any other response is sent, and
    before the model is told that its client has gone."""

    requests: int = 0
    backlog: int = 0
    process_ms: int = 0
    response_ms: int = 0
    complete_ms: int = 0
    completion_ms: int = 0
    cancel_ms: int = 0

    @property
    def scheduler(self) -> SchedulerHold:
        return SchedulerHold(self.requests, self.backlog)

    @property
    def holds_calls(self) -> bool:
        return any((self.process_ms, self.response_ms, self.complete_ms, self.completion_ms, self.cancel_ms))

    def notices(self) -> list[str]:
        """For the log of a server that is not as fast as it could be."""
        set_fields = [each.name for each in fields(self) if getattr(self, each.name)]
        names = [name for name, field in VARIABLES.items() if field in set_fields]
        return [f"requests are held, for tests: {' or '.join(names)} is set"] if names else []


def debug_delays(environment: Mapping[str, str]) -> DebugDelays:
    """What the variables say.

    Raises:
        UsageError: one is no whole number.
    """
    values: dict[str, int] = {}
    for name, field in VARIABLES.items():
        text = environment.get(name, "").strip()
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise UsageError(f"{name}: expected a whole number, got '{text}'")
        values[field] = values.get(field, 0) + int(text)
    return DebugDelays(**values)
