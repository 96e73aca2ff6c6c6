"""Sharing of a job store: what happens to jobs at other servers is done here, too.

Flow: other servers → store → [sharing] → runner, transfers, followers. Owned by `actors.jobs.jobs`, of a server whose
store others use as well.
"""

from __future__ import annotations

import trio

from actors.jobs.followers import Followers
from actors.jobs.runner import JobRunner
from actors.jobs.transfers import Transfers
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.jobs.store import JobChange, JobStore, SharedJobStore

# Between two looks for jobs with a source whose server has ended, and at those that are followed here.
LOOK_SECONDS = 1.0


class Sharing:
    """Of one server. Cancelled, nothing is left over."""

    def __init__(
        self,
        store: JobStore,
        shared: SharedJobStore,
        runner: JobRunner,
        transfers: Transfers,
        followers: Followers,
        failures: CallbackFailures,
    ) -> None:
        """`shared` is the same store."""
        self._store = store
        self._shared = shared
        self._runner = runner
        self._transfers = transfers
        self._followers = followers
        self._failures = failures
        self._is_stopped = False

    async def run(self) -> None:
        """Ends by cancellation."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            while True:
                await trio.sleep(LOOK_SECONDS)
                self._followers.tell_all()
                with self._failures.noted("job", "jobs of other servers could not be looked for"):
                    await self._adopt()

    def stop(self) -> None:
        """Take no jobs of others any more."""
        self._is_stopped = True

    async def _listen(self) -> None:
        while True:
            with self._failures.noted("job", "what other servers do with jobs could not be followed"):
                for change in await self._shared.changes():
                    self._note(change)
                continue
            await trio.sleep(LOOK_SECONDS)

    def _note(self, change: JobChange) -> None:
        if not change.job_id:
            self._followers.tell_all()
            self._runner.wake()
            return
        if change.is_cancelled:
            self._runner.cancel(change.job_id)
            self._transfers.cancel(change.job_id)
        if change.has_items:
            self._runner.wake()
        self._followers.tell(change.job_id)

    async def _adopt(self) -> None:
        """Go on with what is this server's now, and give up what is another's."""
        if self._is_stopped:
            return
        before = {*self._transfers.running}
        try:
            found = await self._store.sources()
            for job, progress in found:
                self._transfers.start(job, progress)
            for job_id in before - {job.id for job, _ in found}:
                left = await self._store.find(None, job_id)
                if left is not None and not left.state.is_ended:
                    self._transfers.give_up(job_id)
        except ServerError:  # told by whoever needs the store
            return
