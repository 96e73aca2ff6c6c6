"""The interface between the edges and the jobs of a server (`Jobs`). `actors.jobs.jobs` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from protocol.jobs.job import Job
from protocol.jobs.links import ResultLink
from protocol.jobs.store import Item, JobFilter, NewJob
from protocol.messages import InferenceResponse


class Follower(Protocol):
    """Sees what happens to one job, as long as it is followed.

    Attributes:
        is_over: the server stops; nothing more is told.
    """

    is_over: bool

    async def changed(self) -> None:
        """Returns when something has happened since the last time, or it is over."""

    def partials(self) -> Sequence[tuple[int, InferenceResponse]]:
        """Parts of results since the last time, each with the index of its item. Of a follower that is slow the oldest
        are dropped."""
        ...


class Jobs(Protocol):
    """The jobs of one server. To everybody but its owner a job does not exist: then NotFound is raised.

    Attributes:
        max_seconds: how long a job may take.
        keep_seconds: how long it is kept after its end, and its idempotency key with it.
    """

    max_seconds: float
    keep_seconds: float

    def now(self) -> float:
        """In seconds since the epoch."""
        ...

    async def add(self, job: NewJob) -> tuple[Job, bool]:
        """As `JobStore.add`; it is run as soon as there is room.

        Raises:
            Unavailable: the server stops.
            InvalidArgument, Unsupported: nobody is told of jobs at the URL of its webhook.
        """
        ...

    async def find(self, owner: str, job_id: str) -> Job: ...

    async def jobs(self, owner: str, which: JobFilter, after: str, limit: int) -> Sequence[Job]: ...

    async def items(self, job_id: str, first: int, limit: int, *, results: bool = False) -> Sequence[Item]:
        """As `JobStore.items`; the caller has found the job."""
        ...

    async def cancel(self, owner: str, job_id: str) -> Job:
        """Cancel a job. What runs of it is given up at once."""
        ...

    async def remove(self, owner: str, job_id: str) -> None:
        """Cancel a job if it has not ended, and forget it."""

    async def wait(self, owner: str, job_id: str, seconds: float) -> Job:
        """The job when it has ended, or after so many seconds, or when the server stops."""
        ...

    async def sign(self, link: ResultLink) -> str:
        """The signature of a link, for who may read what it leads to. Raises InsufficientStorage."""
        ...

    async def find_linked(self, link: ResultLink, signature: str) -> Job:
        """The job that a link leads to, whoever comes with it. Raises Forbidden, LinkExpired, NotFound."""
        ...

    def follow(self, job_id: str) -> AbstractContextManager[Follower]:
        """Follow a job from now on."""
        ...

    def answering(self, owner: str, key: str) -> AbstractContextManager[None]:
        """While a request with this idempotency key is answered; without a key nothing. Raises RequestUnderWay where
        another one is."""
        ...
