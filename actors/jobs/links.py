"""Links to results of one server: signs them, and judges those that come, by the secret of its job store."""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.jobs.links import ResultLink, check, sign
from protocol.jobs.store import JobStore


class Links:
    """The secret is asked for once, by the first who needs it."""

    def __init__(self, store: JobStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._secret = b""
        self._asking = trio.Lock()

    async def signature(self, link: ResultLink) -> str:
        """Raises InsufficientStorage: the secret cannot be kept."""
        return sign(await self._secret_of_store(), link)

    async def check(self, link: ResultLink, signature: str) -> None:
        """Raises Forbidden, LinkExpired."""
        check(await self._secret_of_store(), link, signature, self._now())

    async def _secret_of_store(self) -> bytes:
        async with self._asking:
            self._secret = self._secret or await self._store.link_secret()
        return self._secret
