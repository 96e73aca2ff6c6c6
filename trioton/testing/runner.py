"""A Trio event loop in a thread, for tests that do not run on Trio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from trioton.testing.models import Model


class Runner:
    """A Trio loop in a thread, for as long as a block lasts."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = opened
        self._thread = threading.Thread(target=self._run, name="trioton.testing", daemon=True)
        self._is_decided = threading.Event()
        self._model: Model | None = None
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()

    def start(self) -> Model:
        self._thread.start()
        try:
            self._is_decided.wait()
        except BaseException:  # an interrupt of the test
            self.stop()
            raise
        if self._model is None:
            assert self._failure is not None
            raise self._failure
        return self._model

    def stop(self) -> None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._is_decided.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with self._opened() as model:
            self._model = Model(model, self._token)
            self._is_decided.set()
            await self._stop.wait()
