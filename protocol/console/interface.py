"""The interface between an edge and the live console (`Console`), which `actors.console.console` implements.

Nothing is measured while nobody looks. Every method raises only `protocol.errors.ServerError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from protocol.console.records import (
    ErrorRow,
    History,
    LogRow,
    ModelDetails,
    RequestsInFlight,
)


class Tick(Protocol):
    """What was seen at one second, made once for all who look."""

    @property
    def number(self) -> int:
        """One more than that of the tick before."""

    @property
    def changes(self) -> bytes:
        """A `Snapshot` of what has changed since the tick before, as JSON."""

    @property
    def whole(self) -> bytes:
        """A whole `Snapshot`, as JSON."""


class Viewer(Protocol):
    """Somebody who looks."""

    def leave(self) -> None:
        """Look no longer."""

    async def until_left(self) -> None:
        """Until it has left, or had to make room for another."""

    async def next(self) -> Tick | None:
        """The newest tick that this viewer has not had; those in between are skipped. None when the server stops, or
        the viewer has left."""


class Console(Protocol):
    """The live console of one server."""

    @property
    def names(self) -> frozenset[str]:
        """The names that the server may be called by, in lower case; beside those, addresses and `localhost`."""

    @property
    def control_refusal(self) -> str:
        """Why models are not loaded and unloaded by calls; empty where they are."""

    def viewer(self) -> AbstractContextManager[Viewer]:
        """Look for the time of a block. Where too many do, the one that has come first has to leave.

        Raises:
            Unavailable: the server stops.
        """
        ...

    async def glance(self) -> Tick | None:
        """The newest tick, for somebody who asks once. Raises Unavailable."""

    def history(self) -> History:
        """The server's last 15 minutes."""
        ...

    def version_history(self, name: str, version: str) -> History:
        """The last 15 minutes of a version.

        Raises:
            NotFound: there is none.
        """
        ...

    def model(self, name: str) -> ModelDetails:
        """Raises NotFound."""
        ...

    def requests(self) -> RequestsInFlight: ...

    def cancel(self, number: int) -> bool:
        """Cancel a request in flight; False where it is over."""
        ...

    def errors(self, after: int = 0) -> Sequence[ErrorRow]:
        """The last requests that failed, oldest first, of those that have a higher number."""
        ...

    def log(self, after: int = 0) -> Sequence[LogRow]:
        """The last lines of the log, oldest first, of those that have a higher number."""
        ...
