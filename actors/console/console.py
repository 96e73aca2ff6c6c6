"""The console of one server: joins the sampler, the details, the requests in flight and the rings of recent events.

Flow: core → [console] → edge. Owned by the server, which runs `sampler.run`. Implements
`protocol.console.interface.Console`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import trio

from actors.console.details import model_details
from actors.console.recent import LogTail, RecentErrors
from actors.console.sampler import Sample, Sampler, SampleViewer
from actors.core.in_flight import RequestInFlight
from actors.core.server_core import ServerCore
from actors.lifecycle.table import ModelEntry
from protocol.console.records import (
    LONGEST_NAME,
    ErrorRow,
    History,
    LogRow,
    ModelDetails,
    RequestRow,
    RequestsInFlight,
    cut,
)
from protocol.errors import NotFound, shown_name
from protocol.failures import CallbackFailures
from protocol.origin import RequestTags

# The oldest requests that a list has.
MOST_REQUESTS = 500


class LiveConsole:
    """Attributes:
    names: as in `protocol.console.interface.Console`.
    control_refusal: likewise.
    recent_errors: to be told of requests that fail.
    log_tail: to be added to the server's loggers.
    """

    def __init__(
        self,
        core: ServerCore,
        failures: CallbackFailures,
        names: frozenset[str],
        refusal: str,
        jobs: Callable[[], Mapping[str, int] | None] = lambda: None,
    ) -> None:
        self.names = names
        self.control_refusal = refusal
        self.recent_errors = RecentErrors()
        self.log_tail = LogTail()
        self.sampler = Sampler(core, failures, jobs)
        self._core = core

    def viewer(self) -> AbstractContextManager[SampleViewer]:
        return self.sampler.viewer()

    async def glance(self) -> Sample | None:
        return await self.sampler.glance()

    def history(self) -> History:
        return self.sampler.history()

    def version_history(self, name: str, version: str) -> History:
        if version not in map(str, self._entry(name).versions):
            raise NotFound(f"Request for unknown model: '{shown_name(name)}' version {version[:20]} is not found")
        return self.sampler.version_history((name, version))

    def model(self, name: str) -> ModelDetails:
        return model_details(self._entry(name))

    def requests(self) -> RequestsInFlight:
        now = trio.current_time()
        found = self._core.in_flight.listed()
        rows = [_request_row(each, now) for each in found[:MOST_REQUESTS]]
        return RequestsInFlight(len(self._core.in_flight), rows)

    def cancel(self, number: int) -> bool:
        return self._core.in_flight.cancel_numbered(number)

    def errors(self, after: int = 0) -> Sequence[ErrorRow]:
        return self.recent_errors.after(after)

    def log(self, after: int = 0) -> Sequence[LogRow]:
        return self.log_tail.after(after)

    def _entry(self, name: str) -> ModelEntry:
        entry = self._core.table.entries.get(name)
        if entry is None:
            raise NotFound(f"Request for unknown model: '{shown_name(name)}' is not found")
        return entry


def _request_row(found: RequestInFlight, now: float) -> RequestRow:
    request = found.request
    tags = RequestTags() if request.origin is None else request.origin.tags(request.id)
    return RequestRow(
        found.number,
        cut(found.model, LONGEST_NAME),
        found.version,
        cut(request.id, LONGEST_NAME),
        cut(tags.request_id, LONGEST_NAME),
        tags.key,
        round(now - found.arrival, 3),
        found.is_stream,
    )
