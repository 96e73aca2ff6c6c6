"""Requests in flight that have an id, so that a client can cancel them by it.

Consulted by the core. A request is cancelled as if its client had gone: by its submission, or, where it answers with a
stream of responses, by the cancel scope of the task that takes them. Where `tracks_all` is set, those without an id are
kept too, for people who look: in a dictionary of their own, which costs a request next to nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple, TypeAlias, TypeVar

import trio

from actors.model.submission import Submission, cancelled
from protocol.messages import LATEST_VERSION, InferenceRequest

T = TypeVar("T")

# The list of requests is made in one go: of more than these it has only some.
MOST_LISTED = 4000


@dataclass(eq=False, slots=True)
class StreamInFlight:
    """A request that is answered with any number of responses, while its task takes them."""

    request: InferenceRequest
    arrival: float
    scope: trio.CancelScope

    @property
    def cancel_called(self) -> bool:
        return self.scope.cancel_called

    def cancel(self) -> None:
        self.scope.cancel()


Tracked: TypeAlias = Submission | StreamInFlight


class RequestInFlight(NamedTuple):
    """One of the list. `arrival` is in seconds of Trio's clock."""

    number: int
    model: str
    version: int
    arrival: float
    is_stream: bool
    request: InferenceRequest


@dataclass(eq=False, slots=True)
class InFlight:
    """The requests of one server by model (the name that the client gave) and id. Ids need not be unique.

    Attributes:
        without_id: those without, by the number that they got when they were first listed, 0 before; None where they
            are not kept. The core itself puts them in and takes them out.
    """

    tracks_all: bool = False
    without_id: dict[Submission, int] | None = field(init=False)
    # Each with the version that it runs on, and a number that no other one has.
    _requests: dict[tuple[str, str], dict[Tracked, tuple[int, int]]] = field(default_factory=dict)
    _last_number: int = 0

    def __post_init__(self) -> None:
        self.without_id = {} if self.tracks_all else None

    async def run(self, request: InferenceRequest, version: int, call: Awaitable[T]) -> T:
        """The result of the call, which runs on that version of the model.

        Raises:
            Cancelled: `cancel` has cancelled it.
        """
        key = request.model_name, request.id
        with trio.CancelScope() as scope:
            stream = StreamInFlight(request, trio.current_time(), scope)
            self._add(key, stream, version)
            try:
                return await call
            finally:
                self._remove(key, stream)
        raise cancelled(request)

    def add(self, submission: Submission) -> None:
        """Register a request, until it is removed."""
        count = submission.accepted
        assert count is not None  # counted first
        self._add((count.name, submission.request.id), submission, count.version)

    def remove(self, submission: Submission) -> None:
        count = submission.accepted
        assert count is not None
        self._remove((count.name, submission.request.id), submission)

    def _add(self, key: tuple[str, str], request: Tracked, version: int) -> None:
        self._last_number += 1
        self._requests.setdefault(key, {})[request] = version, self._last_number

    def _remove(self, key: tuple[str, str], request: Tracked) -> None:
        requests = self._requests[key]
        del requests[request]
        if not requests:
            del self._requests[key]

    def cancel(self, model: str, request_id: str, version: int = LATEST_VERSION) -> int:
        """Cancel the requests of this id, on one version or on all; returns how many there were that had not been
        cancelled before. Each is answered with `Cancelled`, soon after at the latest. Those without an id have none
        that they could be cancelled by."""
        if not request_id:
            return 0
        found = [
            request
            for request, (its_version, _) in self._requests.get((model, request_id), {}).items()
            if version in (LATEST_VERSION, its_version) and not request.cancel_called
        ]
        for request in found:
            request.cancel()
        return len(found)

    def cancel_numbered(self, number: int) -> bool:
        """Cancel one of the list; False where it is over, or was cancelled before."""
        with_id = chain.from_iterable(found.items() for found in self._requests.values())
        numbered: Iterator[tuple[Tracked, int]] = ((request, its_number) for request, (_, its_number) in with_id)
        for request, its_number in chain(numbered, (self.without_id or {}).items()):
            if its_number == number and number and not request.cancel_called:
                request.cancel()
                return True
        return False

    def listed(self) -> list[RequestInFlight]:
        """Oldest first; not all of them where there are very many."""
        found = (
            RequestInFlight(number, model, version, each.arrival, isinstance(each, StreamInFlight), each.request)
            for (model, _), requests in self._requests.items()
            for each, (version, number) in requests.items()
        )
        return sorted(islice(chain(self._without_id(), found), MOST_LISTED), key=lambda each: each.arrival)

    def _without_id(self) -> Iterator[RequestInFlight]:
        """Each gets its number with its first look."""
        kept = self.without_id or {}
        for each, number in islice(kept.items(), MOST_LISTED):
            if not number:
                self._last_number = number = self._last_number + 1
                kept[each] = number  # of a key that is there: the dictionary keeps its order and size
            assert each.accepted is not None
            name, version = each.accepted.name, each.accepted.version
            yield RequestInFlight(number, name, version, each.arrival, is_stream=False, request=each.request)

    def __len__(self) -> int:
        return sum(map(len, self._requests.values())) + len(self.without_id or ())
