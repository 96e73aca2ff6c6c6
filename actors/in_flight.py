"""The requests that are under way and have an id, so that a client can cancel them by it.

Consulted by the core. A request is stopped as if its client had gone: its cancel scope reaches whoever holds it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from protocol.errors import Cancelled
from protocol.messages import InferenceRequest

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class InFlight:
    """One server's requests by model (the name that the client gave) and id. Ids need not be unique."""

    _scopes: dict[tuple[str, str], set[trio.CancelScope]] = field(default_factory=dict)

    async def run(self, request: InferenceRequest, call: Awaitable[T]) -> T:
        """What the call gives.

        Raises:
            Cancelled: `cancel` has stopped it.
        """
        key = request.model_name, request.id
        with trio.CancelScope() as scope:
            scopes = self._scopes.setdefault(key, set())
            scopes.add(scope)
            try:
                return await call
            finally:
                scopes.discard(scope)
                if not scopes and self._scopes.get(key) is scopes:
                    del self._scopes[key]
        raise Cancelled(f"[request id: {request.id}] request to model '{request.model_name}' was cancelled")

    def cancel(self, model: str, request_id: str) -> int:
        """Stop the requests of this id; returns how many there were. They end in their own tasks, soon after."""
        scopes = self._scopes.get((model, request_id), set())
        for scope in scopes:
            scope.cancel()
        return len(scopes)

    def __len__(self) -> int:
        return sum(map(len, self._scopes.values()))
