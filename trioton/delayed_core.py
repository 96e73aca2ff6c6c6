"""A wrapper of the core that delays gRPC calls, where debugging variables ask for it (`trioton.debug_delays`).

Flow: gRPC edge → [delayed core] → core. The composition root puts it there only where a variable is set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from protocol.core import InferenceCore, Respond
from protocol.messages import InferenceRequest, InferenceResponse
from trioton.debug_delays import DebugDelays

T = TypeVar("T")


class DelayedCore:
    """An `InferenceCore` whose inferences take longer; all else is the core's own. Its edge has no fast path: only a
    request with a task can be held."""

    def __init__(self, core: InferenceCore, delays: DebugDelays) -> None:
        self._core = core
        self._delays = delays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        delays = self._delays
        await trio.sleep(delays.process_ms / 1000)
        response = await self._cancelled_late(lambda: self._core.infer(request))
        await trio.sleep(delays.completion_ms / 1000)
        return response

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        delays = self._delays

        async def respond_late(response: InferenceResponse) -> None:
            await trio.sleep(delays.response_ms / 1000)
            await respond(response)

        await trio.sleep(delays.process_ms / 1000)
        is_final = await self._cancelled_late(lambda: self._core.infer_stream(request, respond_late))
        await trio.sleep(delays.complete_ms / 1000)
        return is_final

    async def _cancelled_late(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the call gives. Cancelled, the call hears of it only after its time, and may have ended before."""
        seconds = self._delays.cancel_ms / 1000
        if not seconds:
            return await call()
        given: list[T] = []
        failures: list[Exception] = []  # raised below, where no nursery puts them into a group
        ended = trio.Event()
        late = trio.CancelScope(shield=True)

        async def run() -> None:
            with late:
                try:
                    given.append(await call())
                except Exception as error:
                    failures.append(error)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                await ended.wait()
            finally:
                with trio.move_on_after(seconds, shield=True):
                    await ended.wait()
                late.cancel()
        if failures:
            raise failures[0]
        return given[0]
