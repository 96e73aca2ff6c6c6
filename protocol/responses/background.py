"""Responses: the store, and those that run in the background, each in a task of one nursery that the server owns."""

from __future__ import annotations

from typing import Protocol

import trio

from protocol.errors import InvalidArgument, Overloaded, Unavailable
from protocol.failures import CallbackFailures
from protocol.responses.store import KeptResponse, ResponseStore

MAX_BACKGROUND = 256


class BackgroundRun(Protocol):
    """The run of one response."""

    async def run(self, kept: KeptResponse) -> None:
        """Run to the end, whatever comes, and say it in `kept`. Cancelled, it says nothing."""
        ...

    def cancelled(self, kept: KeptResponse) -> None:
        """It was cancelled: say so in `kept`."""
        ...


class Responses:
    """Of one server. `run` is its life; before and after, nothing runs in the background.

    Cancelling it cancels what runs; what is kept is lost with the server.
    """

    def __init__(
        self, limit: int = 64 << 20, max_age: float = 86_400, failures: CallbackFailures | None = None
    ) -> None:
        self._store = ResponseStore(limit, max_age)
        self._failures = failures or CallbackFailures()
        self._nursery: trio.Nursery | None = None
        self._is_stopped = False
        self._running: dict[KeptResponse, tuple[trio.CancelScope, trio.Event]] = {}

    @property
    def is_on(self) -> bool:
        return self._store.limit > 0

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def keep(self, response: KeptResponse) -> bool:
        """Returns whether there is room for it."""
        return self._store.keep(response, trio.current_time())

    def find(self, owner: str, response_id: str) -> KeptResponse | None:
        return self._store.find(owner, response_id, trio.current_time())

    def begin(self, response: KeptResponse, run: BackgroundRun) -> None:
        """Keep a response and run it in the background.

        Raises:
            InvalidArgument: it is too large to be kept.
            Overloaded: too many do, or hold too much.
            Unavailable: the server is starting or stopping.
        """
        if self._nursery is None or self._is_stopped:
            raise Unavailable("no response runs in the background now: the server starts or stops")
        if response.size > self._store.limit_of_one:
            raise InvalidArgument(
                f"the response holds {response.size} bytes, and at most {self._store.limit_of_one} are kept of one. "
                f"Use --openai-store-bytes to keep more."
            )
        held = sum(each.size for each in self._running) + response.size
        if len(self._running) >= MAX_BACKGROUND or 2 * held > self._store.limit:
            raise Overloaded(
                f"{len(self._running)} responses run in the background, and there is no room for more. "
                f"Use --openai-store-bytes to keep more."
            )
        response.is_running = response.is_background = True
        self._store.keep(response, trio.current_time())
        self._running[response] = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._run, response, run)

    def changed(self, response: KeptResponse) -> None:
        """Its answer or its events have."""
        self._store.recount(response)

    def stop(self) -> None:
        """Cancel what runs, and let nothing begin any more."""
        self._is_stopped = True
        for scope, _ in self._running.values():
            scope.cancel()

    async def cancel(self, response: KeptResponse) -> None:
        """Returns when it does not run any more."""
        if (running := self._running.get(response)) is not None:
            scope, ended = running
            scope.cancel()
            await ended.wait()

    async def remove(self, response: KeptResponse) -> None:
        self._store.remove(response)
        await self.cancel(response)

    async def _run(self, response: KeptResponse, run: BackgroundRun) -> None:
        scope, ended = self._running[response]
        try:
            with self._failures.noted("background", "a response in the background failed"):
                with scope:
                    await run.run(response)
                if scope.cancelled_caught:
                    run.cancelled(response)
        finally:
            response.is_running = False
            if response.log is not None:
                response.log.end()
            del self._running[response]
            self._store.recount(response)
            ended.set()
