"""The event loop of `async def execute`."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Coroutine


class BackgroundLoop:
    """One for the instance's life, so that what a model made in it stays usable, and in a thread of its own, so that
    the model's tasks go on between batches. It begins with the first coroutine."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Begin to run it; the future is done when it has ended."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="execute", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
