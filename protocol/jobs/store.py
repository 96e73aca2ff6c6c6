"""The interface of job stores: where jobs, their requests and their results are kept.

`actors.jobs.sqlite` comes with the server; installed packages add others by entry points of the group
`trioton.job_stores`. The server calls a store on its Trio loop, with the time as `now` in seconds since the epoch.

What a store promises: when a call has returned, what it has done outlives a crash of the server and of the machine.
Each item is claimed by one caller at a time, and its result is stored together with its end, once: an outcome whose
claim is not the current one is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from protocol.errors import InvalidArgument
from protocol.jobs.job import ItemError, Job
from protocol.jobs.source import JobSource, Progress
from protocol.jobs.states import JobState
from protocol.jobs.webhook import Delivery, DeliveryRoom, Webhook
from protocol.messages import Buffer


@dataclass(frozen=True, slots=True)
class NewItem:
    """One request of a job that is to be made.

    Attributes:
        model: the model that is to answer.
        request: encoded, in parts; only the item's executor reads it.
        custom_id: the client's own name for it.
        form: what whoever made the job wants to know to write the result; the store does not read it.
        error: why there is no request; the item has failed from the beginning.
    """

    model: str
    request: Sequence[Buffer]
    custom_id: str = ""
    form: bytes = b""
    error: ItemError | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is to be made. `key` is its idempotency key, empty for none, and `fingerprint` a digest of what has to
    be the same where the key is. `kind` is that of `Job`. One with a `source` has no items yet, and does not end before
    `JobStore.close_source`."""

    id: str
    owner: str
    items: Sequence[NewItem]
    deadline: float
    model: str = ""
    version: int = -1
    metadata: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    fingerprint: bytes = b""
    kind: str = ""
    source: JobSource | None = None
    webhook: Webhook | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """An item that is to be run now.

    Attributes:
        owner: that of its job.
        claim: tells this claim of the item from those before and after.
        attempt: how often it was run, this time included.
        byte_size: of its request.
        request, place: for the store, which reads the request by them.
        kind: that of its job.
    """

    job_id: str
    owner: str
    index: int
    claim: int
    attempt: int
    model: str
    deadline: float
    byte_size: int
    request: Buffer
    place: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a claimed item.

    Attributes:
        state: QUEUED where it is to be run again, not before `not_before`; else how it ended.
        result: encoded, in parts, where it succeeded, or its executor tells its failure so.
        error: why it has failed, or is to be run again.
        is_counted: false where this attempt is to count for nothing: it was given back.
    """

    job_id: str
    index: int
    claim: int
    state: JobState
    result: Sequence[Buffer] = ()
    error: ItemError | None = None
    not_before: float = 0.0
    is_counted: bool = True


@dataclass(frozen=True, slots=True)
class Item:
    """An item as it is now. `result` is None unless there is one and it was asked for."""

    index: int
    custom_id: str
    model: str
    state: JobState
    attempt: int
    form: bytes
    result: Buffer | None = None
    error: ItemError | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list: those in one of `states` (all where it is empty), of `model` (any where it is empty), and of
    one kind."""

    states: frozenset[JobState] = frozenset()
    model: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """How many jobs there are in each state, when the oldest that has not ended was made (0 for none), and bytes."""

    jobs: Mapping[JobState, int]
    oldest: float
    byte_size: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store holds.

    Attributes:
        byte_size: of all requests and results together.
        keep_seconds: how long a job is kept after its end.
        max_interruptions: how often the server may end while an item runs before the item has failed.
        reserve: bytes of the disk that are kept free of new jobs, for the results of those that run.
    """

    byte_size: int = 10 << 30
    keep_seconds: float = 86_400.0
    max_interruptions: int = 5
    reserve: int = 64 << 20


@dataclass(frozen=True, slots=True)
class JobChange:
    """Something has happened to a job at another server.

    Attributes:
        job_id: empty where it may be any.
        is_cancelled: what runs of it here is to be given up.
        has_items: there may be something to claim.
    """

    job_id: str
    is_cancelled: bool = False
    has_items: bool = False


class IdempotencyMismatch(InvalidArgument):
    """The idempotency key was used for another request."""


class RequestUnderWay(InvalidArgument):
    """A request with the same idempotency key has not been answered yet."""

    retry_after = 1.0


class JobStore(Protocol):
    """Where the jobs of one server are kept, or of several (`SharedJobStore`). `open` is called first and `close` last;
    the other methods may be called between by any number of tasks. They raise InsufficientStorage where they have to
    write and there is no room, and Unavailable where the store cannot be reached now."""

    async def open(self, now: float) -> None:
        """Get ready: what ran when the server ended is queued again, or has failed where that was too often; deliveries
        that were under way are due again. In a shared store so it is, a little later, with what any server that has
        ended had.

        Raises:
            UnusableStore: the text says why and what to change.
        """

    async def close(self) -> None:
        """Free everything. Called once, shielded."""

    async def add(self, job: NewJob, now: float) -> tuple[Job, bool]:
        """Keep a job; returns whether it was made. With an idempotency key that its owner has used before the job of
        then is returned.

        Raises:
            InsufficientStorage: there is no room for it.
            IdempotencyMismatch: the key was used for another request.
            Overloaded: it has a webhook, and too many deliveries of its owner have not been taken.
        """
        ...

    async def find(self, owner: str | None, job_id: str) -> Job | None:
        """Without an owner, that of any."""
        ...

    async def jobs(self, owner: str, which: JobFilter, after: str, limit: int) -> Sequence[Job]:
        """The newest first, those that come after the job `after`."""
        ...

    async def items(self, job_id: str, first: int, limit: int, *, results: bool = False) -> Sequence[Item]:
        """Items of a job by their index, from `first` on. With `results` so many that their results are some MiB, or
        one."""
        ...

    async def claim(self, room: Mapping[str, int], default: int, now: float) -> Sequence[Claim]:
        """Take items that are queued, the oldest first: so many of each model as `room` says, `default` of any other.
        They are running then."""
        ...

    async def request(self, claim: Claim) -> Buffer:
        """The request of a claimed item. Raises Internal where it cannot be read."""
        ...

    async def finish(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Job | None]:
        """Store outcomes of different items. Returns the job of each as it is then; None where the claim is not the
        current one. Where it raises, some of them may be stored: it is called again for each of them."""
        ...

    async def cancel(self, owner: str, job_id: str, now: float) -> Job | None:
        """Cancel what is queued. The job is CANCELLING while items of it run, whose owner is to give them up."""
        ...

    async def remove(self, owner: str, job_id: str) -> bool:
        """Forget a job that has ended; returns whether there was one."""
        ...

    async def expire(self, now: float) -> Sequence[str]:
        """Let what is queued beyond its deadline expire, and forget what was kept for long enough, some of it: called
        every second. Returns the ids of jobs that have ended by that."""
        ...

    async def sources(self) -> Sequence[tuple[Job, Progress]]:
        """The jobs with a source that have not ended, the oldest first. Of a shared store those that are this server's
        to go on with from now on; it is asked again and again, and one that is not among them any more is another's."""
        ...

    async def extend(
        self, job_id: str, items: Sequence[NewItem], progress: Progress, now: float, error: ItemError | None = None
    ) -> Job | None:
        """Add items to a job with a source, behind those that it has had, and keep how far it is; `error` is why it is
        no further. A job that is cancelled, or has ended, gets none. None: there is no such job.

        Raises:
            InsufficientStorage: there is no room for them.
        """
        ...

    async def drain(self, job_id: str, progress: Progress, now: float) -> Job | None:
        """Forget the items before `progress.written`, which have ended and whose results are elsewhere. What they are
        counted as stays."""
        ...

    async def close_source(
        self, job_id: str, now: float, state: JobState | None = None, error: ItemError | None = None
    ) -> Job | None:
        """No items come any more: cancel those that are queued, and end the job unless some run; then it is to be
        called again. It ends in `state`, or as its items did; CANCELLED in any case where it was cancelled. Its items
        are forgotten."""
        ...

    async def figures(self) -> StoreFigures: ...

    async def claim_deliveries(self, room: DeliveryRoom, now: float, until: float) -> Sequence[Delivery]:
        """Take deliveries that are due, as many as there is room for: first those that were tried least. Nobody is
        given them again before `until`, unless they are settled."""
        ...

    async def settle_delivery(self, delivery: Delivery, again: float | None) -> None:
        """Forget a delivery, or let it be due again at a time."""

    async def link_secret(self) -> bytes:
        """At least 32 random bytes, made at the first call and the same ever after: links to results are signed by
        them."""
        ...


@runtime_checkable
class SharedJobStore(Protocol):
    """What a `JobStore` has beside which several servers use at the same time. Each of them claims, and what is claimed
    by one that has ended others claim again."""

    async def changes(self) -> Sequence[JobChange]:
        """Wait until something has happened to jobs at other servers, and say what; one task calls it. What cannot be
        said in time may be left out, but for jobs that were cancelled while items of them run here."""
        ...


class UnusableStore(Exception):
    """The job store that was asked for cannot be used. The text says why and what to change."""
