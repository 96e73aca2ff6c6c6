"""The jobs of one server: implements `protocol.jobs.service.Jobs` on a store and the runner.

Flow: edge → [jobs] → store; runner → followers → edge. The server owns it: `run` opens the store and closes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import trio

from actors.jobs.figures import RunnerFigures
from actors.jobs.followers import Followers, JobFollower
from actors.jobs.links import Links
from actors.jobs.pace import Pace
from actors.jobs.runner import JobRunner
from actors.jobs.sharing import Sharing
from actors.jobs.transfer import RowParts
from actors.jobs.transfers import Transfers
from actors.jobs.webhooks import Webhooks
from protocol.errors import NotFound, Unavailable, Unsupported
from protocol.failures import CallbackFailures
from protocol.jobs.execution import JobExecutor
from protocol.jobs.job import Job
from protocol.jobs.links import ResultLink
from protocol.jobs.store import Item, JobFilter, JobStore, NewJob, RequestUnderWay, SharedJobStore
from protocol.jobs.webhook import Webhook

MAX_IN_FLIGHT = 64


class ServerJobs:
    """Until `run` has started and once `stop` was called, no job is taken."""

    def __init__(
        self,
        store: JobStore,
        executor: JobExecutor,
        *,
        max_seconds: float = 86_400.0,
        keep_seconds: float = 86_400.0,
        most_in_flight: int = MAX_IN_FLIGHT,
        webhooks: Webhooks | None = None,
        failures: CallbackFailures | None = None,
        rows: RowParts | None = None,
        now: Callable[[], float] = time.time,
        executors: Mapping[str, JobExecutor] = {},
        pace: Pace | None = None,
    ) -> None:
        """`executors` run the items of jobs of other kinds. `pace` is told of live requests by others."""
        self.max_seconds = max_seconds
        self.keep_seconds = keep_seconds
        self.now = now
        self._store = store
        self._followers = Followers()
        failures = failures or CallbackFailures()
        pace = pace or Pace()
        self._runner = JobRunner(
            store,
            executor,
            self._followers,
            failures,
            now,
            most_in_flight=most_in_flight,
            executors=executors,
            pace=pace,
        )
        self._transfers = Transfers(store, rows, self._followers, failures, self._runner.rows_added, now, pace)
        self._sharing: Sharing | None = None
        if isinstance(store, SharedJobStore):
            self._sharing = Sharing(store, store, self._runner, self._transfers, self._followers, failures)
        self._links = Links(store, now)
        self._webhooks = webhooks
        self._runner.figures.webhooks = None if webhooks is None else webhooks.figures
        self._is_taking = False
        self._answering: set[tuple[str, str]] = set()

    @property
    def figures(self) -> RunnerFigures:
        """For the metrics; those of the store are a second old at most."""
        return self._runner.figures

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the store is open; ends by cancellation, and closes the store. What runs then, and was not given
        back after `stop`, is queued again by the next start.

        Raises:
            UnusableStore: nothing has been started.
        """
        try:
            await self._store.open(self.now())
            async with trio.open_nursery() as nursery:
                await nursery.start(self._transfers.run, await self._store.sources())
                if self._webhooks is not None:
                    nursery.start_soon(self._webhooks.run)
                if self._sharing is not None:
                    nursery.start_soon(self._sharing.run)
                self._is_taking = True
                task_status.started()
                await self._runner.run()
                await trio.sleep_forever()  # edges still read from it
        finally:
            self._is_taking = False
            with trio.CancelScope(shield=True):  # as long as one transaction
                await self._store.close()

    def stop(self) -> None:
        """Take no jobs, end or give back what runs; what is kept can still be read."""
        self._is_taking = False
        if self._sharing is not None:
            self._sharing.stop()
        self._transfers.stop()
        self._runner.stop()
        self._followers.end()

    async def add(self, job: NewJob) -> tuple[Job, bool]:
        if not self._is_taking:
            raise Unavailable("no jobs are taken now: the server starts or stops")
        if job.source is not None:
            await self._transfers.check(job.source)
        # The operator's own is for those that are shown as jobs; who makes others says whom they tell.
        webhook = job.webhook if job.kind else self.webhook_for(job.owner, job.webhook)
        made, is_new = await self._store.add(replace(job, webhook=webhook), self.now())
        if is_new:
            self._transfers.start(made)
            self._runner.wake()
        return made, is_new

    def webhook_for(self, owner: str, webhook: Webhook | None) -> Webhook | None:
        """Who is told of a new job or batch: as its client has asked, or else as the operator has.

        Raises:
            InvalidArgument: its receiver may not be asked.
            Unsupported: the server tells nobody.
        """
        if self._webhooks is None:
            if webhook is not None:
                raise Unsupported(
                    "webhooks need hosts that may be told: start the server with --jobs-webhook-allowed-hosts"
                )
            return None
        return self._webhooks.for_job(owner, webhook)

    async def find(self, owner: str, job_id: str) -> Job:
        return _found(await self._store.find(owner, job_id), job_id)

    async def jobs(self, owner: str, which: JobFilter, after: str, limit: int) -> Sequence[Job]:
        return await self._store.jobs(owner, which, after, limit)

    async def items(self, job_id: str, first: int, limit: int, *, results: bool = False) -> Sequence[Item]:
        return await self._store.items(job_id, first, limit, results=results)

    async def cancel(self, owner: str, job_id: str) -> Job:
        await self.find(owner, job_id)
        return _found(await self.give_up(owner, job_id), job_id)

    async def give_up(self, owner: str, job_id: str) -> Job | None:
        """As `cancel`, of any kind; None where there is no such job."""
        job = await self._store.cancel(owner, job_id, self.now())
        if job is not None:
            self._runner.cancel(job_id)
            self._transfers.cancel(job_id)
            self._followers.tell(job_id)
        return job

    async def remove(self, owner: str, job_id: str) -> None:
        with self._followers.follow(job_id) as follower:
            job = await self.cancel(owner, job_id)
            while not (job.state.is_ended or follower.is_over):
                await follower.changed()
                job = await self.find(owner, job_id)
        await self._store.remove(owner, job_id)
        self._followers.tell(job_id)

    async def wait(self, owner: str, job_id: str, seconds: float) -> Job:
        with self._followers.follow(job_id) as follower:
            job = await self.find(owner, job_id)
            with trio.move_on_after(seconds):
                while not (job.state.is_ended or follower.is_over):
                    await follower.changed()
                    job = await self.find(owner, job_id)
        return job

    async def sign(self, link: ResultLink) -> str:
        return await self._links.signature(link)

    async def find_linked(self, link: ResultLink, signature: str) -> Job:
        await self._links.check(link, signature)
        return _found(await self._store.find(None, link.job_id), link.job_id)

    def follow(self, job_id: str) -> AbstractContextManager[JobFollower]:
        return self._followers.follow(job_id)

    @contextmanager
    def answering(self, owner: str, key: str) -> Iterator[None]:
        if not key:
            yield
            return
        mark = owner, key
        if mark in self._answering:
            raise RequestUnderWay(f"a request with Idempotency-Key '{key:.64}' has not been answered yet")
        self._answering.add(mark)
        try:
            yield
        finally:
            self._answering.remove(mark)


def _found(job: Job | None, job_id: str) -> Job:
    """One of another kind is shown by its own interface."""
    if job is None or job.kind:
        raise NotFound(f"there is no job '{job_id:.128}'")
    return job
