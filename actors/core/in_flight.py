"""Requests in flight that have an id, so that a client can cancel them by it.

Consulted by the core. A request is cancelled as if its client had gone: by its submission, or, where it answers with a
stream of responses, by the cancel scope of the task that takes them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from actors.model.submission import Submission, cancelled
from protocol.messages import LATEST_VERSION, InferenceRequest

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class InFlight:
    """The requests of one server by model (the name that the client gave) and id. Ids need not be unique."""

    # Each with the version that it runs on.
    _requests: dict[tuple[str, str], dict[trio.CancelScope | Submission, int]] = field(default_factory=dict)

    async def run(self, request: InferenceRequest, version: int, call: Awaitable[T]) -> T:
        """The result of the call, which runs on that version of the model.

        Raises:
            Cancelled: `cancel` has cancelled it.
        """
        key = request.model_name, request.id
        with trio.CancelScope() as scope:
            self._requests.setdefault(key, {})[scope] = version
            try:
                return await call
            finally:
                self._remove(key, scope)
        raise cancelled(request)

    def add(self, submission: Submission) -> None:
        """Register a request, until it is removed."""
        name, version = submission.accepted
        self._requests.setdefault((name, submission.request.id), {})[submission] = version

    def remove(self, submission: Submission) -> None:
        self._remove((submission.accepted[0], submission.request.id), submission)

    def _remove(self, key: tuple[str, str], request: trio.CancelScope | Submission) -> None:
        requests = self._requests[key]
        del requests[request]
        if not requests:
            del self._requests[key]

    def cancel(self, model: str, request_id: str, version: int = LATEST_VERSION) -> int:
        """Cancel the requests of this id, on one version or on all; returns how many there were that had not been
        cancelled before. Each is answered with `Cancelled`, soon after at the latest."""
        found = [
            request
            for request, its_version in self._requests.get((model, request_id), {}).items()
            if version in (LATEST_VERSION, its_version) and not request.cancel_called
        ]
        for request in found:
            request.cancel()
        return len(found)

    def __len__(self) -> int:
        return sum(map(len, self._requests.values()))
