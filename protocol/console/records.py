"""Records of the live console, as its JSON has them.

Every text that others wrote (reasons, errors, names of instances) is cut to a length, so that a record has a bound in
bytes. Rates are per second, durations in milliseconds, times in seconds since the epoch; None stands for what is not
known or did not happen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from protocol.core import MemoryUsage

# Characters that are kept of a text.
LONGEST_TEXT = 2000
LONGEST_NAME = 256


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """The beginning of a text, which can be written as UTF-8: a name of a file need not be."""
    if len(text) > longest:
        text = f"{text[:longest]}…"
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class VersionRow(msgspec.Struct, frozen=True):
    """One version of a model, or a model without any, whose `version` is empty. `kind` is "instances", "ensemble" or
    "split"; `is_ready` says whether all of its instances are alive."""

    name: str
    version: str
    state: str
    reason: str = ""
    backend: str = ""
    kind: str = ""
    is_ready: bool = False
    rate: float = 0.0
    failures: float = 0.0
    p50: float | None = None
    p99: float | None = None
    queue: int = 0
    in_flight: int = 0
    batch: float | None = None
    hits: float = 0.0
    misses: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.version


class ServerRow(msgspec.Struct, frozen=True):
    """All versions together, and the server itself. `loop_lag` is the longest that the event loop was held up within
    the last second; `memory` is that of this process; the budget's members are None where there is none, as is `jobs`,
    how many there are in each state."""

    rate: float = 0.0
    failures: float = 0.0
    p50: float | None = None
    p99: float | None = None
    queue: int = 0
    in_flight: int = 0
    loop_lag: float = 0.0
    memory: int | None = None
    budget: int | None = None
    budget_used: int | None = None
    budget_waiting: int | None = None
    evictions: int | None = None
    states: Mapping[str, int] = {}
    jobs: Mapping[str, int] | None = None
    viewers: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """The state at one second. In what follows a snapshot, `models` are only the rows that have changed since the
    number before, and `gone` are those that are no more; in a whole one there are none."""

    number: int
    time: float
    server: ServerRow
    models: Sequence[VersionRow]
    gone: Sequence[tuple[str, str]] = ()


class History(msgspec.Struct, frozen=True):
    """What was recorded, oldest first: the first value of each series is of the time `start`, the others are `step`
    seconds apart."""

    start: float
    step: float
    series: Mapping[str, Sequence[float | None]]


class InstanceRow(msgspec.Struct, frozen=True):
    """`state` is "ready", "loading", or "backoff": its restart is put off."""

    name: str
    state: str
    restarts: int = 0
    last_error: str = ""
    device: str = ""


class TargetRow(msgspec.Struct, frozen=True):
    """A target of a traffic split, or (with `percent`) a shadow. `requests` are those that it has got."""

    model: str
    version: int
    weight: int | None = None
    percent: float | None = None
    requests: int = 0


class VersionDetails(msgspec.Struct, frozen=True):
    version: str
    state: str
    reason: str = ""
    load_seconds: float = 0.0
    is_decoupled: bool = False
    open_sequences: int = 0
    instances: Sequence[InstanceRow] = ()
    memory: Sequence[MemoryUsage] = ()
    targets: Sequence[TargetRow] = ()


class ModelDetails(msgspec.Struct, frozen=True):
    """`needs` are the models that this one calls: of an ensemble's steps, or of a traffic split. `failure` is why the
    last load failed."""

    name: str
    versions: Sequence[VersionDetails]
    needs: Sequence[str] = ()
    failure: str = ""


class RequestRow(msgspec.Struct, frozen=True):
    """A request in flight. `number` is the console's own, to cancel it by; `id` is the protocol's, `request_id` that of
    the call (`x-request-id`), and `key` the name of the key that it came with."""

    number: int
    model: str
    version: int
    id: str
    request_id: str
    key: str
    seconds: float
    is_stream: bool


class RequestsInFlight(msgspec.Struct, frozen=True):
    """The oldest ones of all `count`."""

    count: int
    requests: Sequence[RequestRow]


class ErrorRow(msgspec.Struct, frozen=True):
    """A request that was answered with an error. `number` counts all that there were."""

    number: int
    time: float
    call: str
    status: str
    kind: str
    text: str
    model: str = ""
    version: str = ""
    id: str = ""


class LogRow(msgspec.Struct, frozen=True):
    """A line of the server's log. `number` counts all that there were."""

    number: int
    time: float
    level: str
    logger: str
    text: str
