"""The requests that are under way and have an id, so that a client can cancel them by it.

Consulted by the core. A request is stopped as if its client had gone: its cancel scope reaches whoever holds it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from protocol.errors import Cancelled
from protocol.messages import LATEST_VERSION, InferenceRequest

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class InFlight:
    """One server's requests by model (the name that the client gave) and id. Ids need not be unique."""

    # Each with the version that it runs on.
    _scopes: dict[tuple[str, str], dict[trio.CancelScope, int]] = field(default_factory=dict)

    async def run(self, request: InferenceRequest, version: int, call: Awaitable[T]) -> T:
        """What the call gives, which runs on that version of the model.

        Raises:
            Cancelled: `cancel` has stopped it.
        """
        key = request.model_name, request.id
        with trio.CancelScope() as scope:
            scopes = self._scopes.setdefault(key, {})
            scopes[scope] = version
            try:
                return await call
            finally:
                del scopes[scope]
                if not scopes and self._scopes.get(key) is scopes:
                    del self._scopes[key]
        raise Cancelled(f"[request id: {request.id}] request to model '{request.model_name}' was cancelled")

    def cancel(self, model: str, request_id: str, version: int = LATEST_VERSION) -> int:
        """Stop the requests of this id, on one version or on all; returns how many there were that nobody had stopped
        before. They end in their own tasks, soon after."""
        found = [
            scope
            for scope, its_version in self._scopes.get((model, request_id), {}).items()
            if version in (LATEST_VERSION, its_version) and not scope.cancel_called
        ]
        for scope in found:
            scope.cancel()
        return len(found)

    def __len__(self) -> int:
        return sum(map(len, self._scopes.values()))
