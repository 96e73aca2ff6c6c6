"""Shutdown sequence of a server: not ready, then no new requests, then drained.

Part of `trioton.server`, which closes the edges and the models after it. Source: Triton, "Start and exit"; the first
step, during which a server that is not ready goes on answering, is ours.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from actors.core.server_core import ServerCore
from protocol.responses.background import Responses

if TYPE_CHECKING:
    from actors.jobs.jobs import ServerJobs

logger = logging.getLogger("trioton.server")

# How often the log says what still runs.
PROGRESS_SECONDS = 1.0


class ExitTimeoutExpired(Exception):
    """The server was stopped, and what it had accepted did not end within `exit_timeout_secs`."""

    def __init__(self, cut_off: int = 0) -> None:
        lost = f" {cut_off} inferences were cut off." if cut_off else ""
        super().__init__(f"Exit timeout expired. Exiting immediately.{lost}")


class Ending:
    """One server's: `begin` first, then `run`.

    `cut_off` counts the requests that were under way when the exit timeout expired, and the open sequences. `jobs` are
    the server's, if it has any: what runs of them is given back.
    """

    def __init__(self, core: ServerCore, responses: Responses, *, drain_secs: int, exit_timeout_secs: int) -> None:
        self.cut_off = 0
        self.jobs: ServerJobs | None = None
        self._core = core
        self._responses = responses
        self._drain_secs = drain_secs
        self._exit_timeout_secs = exit_timeout_secs
        self._began = 0.0

    def begin(self) -> None:
        """At once the server is not ready; without a time to drain it takes no new work either."""
        self._began = trio.current_time()
        if self._drain_secs:
            logger.info("not ready any more; requests are taken for another %d s", self._drain_secs)
            self._core.turn_unready()
        else:
            self._refuse()

    async def run(self, whole: trio.CancelScope, helpers: trio.Nursery) -> None:
        """Returns when everything accepted is answered. Cancels `whole`, the server, when the exit timeout expires."""
        refuses_at = self._began + self._drain_secs
        await trio.sleep_until(refuses_at)
        self._refuse()
        self._responses.stop()  # nobody could come back for them
        deadline = refuses_at + self._exit_timeout_secs
        helpers.start_soon(self._expire, deadline, whole)
        helpers.start_soon(self._tell_progress, deadline)
        await self._core.wait_answered()
        logger.info("All models are stopped, unloading models")

    def _refuse(self) -> None:
        if self.jobs is not None:
            self.jobs.stop()  # first: else what they run would be refused
        self._core.stop(finishes_sequences=True)

    async def _expire(self, deadline: float, whole: trio.CancelScope) -> None:
        await trio.sleep_until(deadline)
        self.cut_off = sum(self._core.accepted().values()) + sum(self._core.open_sequences().values())
        whole.cancel()

    async def _tell_progress(self, deadline: float) -> None:
        while not self._core.is_answered():
            accepted, sequences = self._core.accepted(), self._core.open_sequences()
            left = max(0, round(deadline - trio.current_time()))
            count = len({*accepted, *sequences})
            logger.info("Timeout %d: Found %d model versions that have in-flight inferences", left, count)
            for (name, version), count in sorted(accepted.items()):
                logger.info("Model '%s' (version %d) has %d in-flight inferences", name, version, count)
            for (name, version), count in sorted(sequences.items()):
                logger.info("Model '%s' (version %d) has %d open sequences", name, version, count)
            await trio.sleep(PROGRESS_SECONDS)
