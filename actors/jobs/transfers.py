"""Transfers: the jobs of a server whose rows come from files, each with a task that takes them there and back.

Owned by `actors.jobs.jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import trio

from actors.jobs.followers import Followers
from actors.jobs.pace import Pace
from actors.jobs.transfer import JobTransfer, RowParts, TransferParts
from protocol.errors import Internal, ServerError, Unavailable, Unsupported, text_of
from protocol.failures import CallbackFailures
from protocol.jobs.job import Job
from protocol.jobs.source import JobSource, Progress
from protocol.jobs.store import JobStore

# That have not ended; each has a task.
MOST_TRANSFERS = 1000
# Files that are read or written at the same time.
_THREADS = 8
# Until a transfer is begun again after its store has failed.
_AGAIN_SECONDS = 1.0


class Transfers:
    """Those of one server."""

    def __init__(
        self,
        store: JobStore,
        rows: RowParts | None,
        followers: Followers,
        failures: CallbackFailures,
        added: Callable[[int], None],
        now: Callable[[], float],
        pace: Pace,
    ) -> None:
        """Without `rows` no job can have a source."""
        self._followers = followers
        self._failures = failures
        self._rows = rows
        self._parts: TransferParts | None = None
        if rows is not None:
            self._parts = TransferParts(store, rows, added, now, trio.CapacityLimiter(_THREADS), pace)
        self._running: dict[str, JobTransfer] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None

    async def check(self, source: JobSource) -> None:
        """Raises ServerError: there cannot be a job with this source, or not now."""
        if len(self._running) >= MOST_TRANSFERS:
            raise Unavailable(f"{MOST_TRANSFERS} jobs with inputs by URL have not ended, which is the most")
        if self._rows is None:
            raise Unsupported("this server takes no jobs with inputs by URL")
        await trio.to_thread.run_sync(self._rows.files.check, source)

    async def run(
        self, jobs: Sequence[tuple[Job, Progress]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Go on with jobs that have not ended, and take more until `stop`."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for job, progress in jobs:
                self.start(job, progress)
            task_status.started()
            await trio.sleep_forever()

    def start(self, job: Job, progress: Progress = Progress()) -> None:  # noqa: B008 (frozen)
        """A job was made; it may be one without a source."""
        parts, nursery = self._parts, self._nursery
        if parts is None or nursery is None or job.source is None or job.id in self._running:
            return
        transfer = self._running[job.id] = JobTransfer(parts, job, progress, job.source)
        nursery.start_soon(self._run, job.id, transfer)

    def cancel(self, job_id: str) -> None:
        """A job was cancelled."""
        transfer = self._running.get(job_id)
        if transfer is not None:
            transfer.cancel()

    @property
    def running(self) -> Set[str]:
        """The jobs that are under way."""
        return self._running.keys()

    def give_up(self, job_id: str) -> None:
        """Another server goes on with a job."""
        scope = self._scopes.get(job_id)
        if scope is not None:
            scope.cancel()

    def stop(self) -> None:
        """Leave all as it is; the next start goes on with it."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            self._nursery = None

    async def _run(self, job_id: str, transfer: JobTransfer) -> None:
        scope = self._scopes[job_id] = trio.CancelScope()
        try:
            with scope, self._followers.follow(job_id) as follower:
                while True:
                    try:
                        await transfer.run(follower)
                        break
                    except ServerError:  # the store's, which tells it itself
                        await trio.sleep(_AGAIN_SECONDS)
                    except Exception as error:
                        self._failures.note("job", error, f"the files of job '{job_id}' could not be read or written")
                        transfer.fail(Internal(f"internal error: {text_of(error)}"))
        finally:
            del self._running[job_id], self._scopes[job_id]
            self._followers.tell(job_id)
