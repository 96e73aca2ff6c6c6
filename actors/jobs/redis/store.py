"""The Redis job store: the calls of `protocol.jobs.store.JobStore` as runs of a script in a Redis server.

Owned by the server's jobs. Several servers may use the same: each has a name of its own while it runs, and says every
second that it is there; what is claimed by one that does not others claim again. What is large goes over connections of
its own, in threads of Trio's.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import redis
import trio

from actors.jobs.redis import codec
from actors.jobs.redis.batch_store import MOST_DELIVERIES, RedisBatches, too_many_deliveries
from actors.jobs.redis.checks import check_server
from actors.jobs.redis.commands import CommandThread, run_commands
from actors.jobs.redis.errors import Disconnected, server_error
from actors.jobs.redis.script import Argument, command, key_prefix
from actors.jobs.redis.watch import BEAT_SECONDS, Watch, WatchedStore
from actors.redis_client import RedisAddress, make_client
from protocol.errors import InsufficientStorage, Internal, PayloadTooLarge, ServerError, Unavailable
from protocol.jobs.job import ItemError, Job
from protocol.jobs.source import Progress
from protocol.jobs.states import JobState, check_item_move
from protocol.jobs.store import (
    Claim,
    IdempotencyMismatch,
    Item,
    JobChange,
    JobFilter,
    Limits,
    NewItem,
    NewJob,
    Outcome,
    StoreFigures,
    UnusableStore,
)
from protocol.jobs.webhook import Delivery, DeliveryRoom
from protocol.messages import Buffer

logger = logging.getLogger(__name__)

# Bytes of one request, or result; and of all requests of one call.
LARGEST, LARGEST_TOGETHER = 256 << 20, 448 << 20
# What is larger does not go with the calls of others.
LARGE = 1 << 20
# Bytes of results that are read at once, about.
_MOST_RESULT_BYTES = 4 << 20
_CONNECTIONS = 8


class RedisStore(RedisBatches):
    """Implements `protocol.jobs.store.JobStore` and `SharedJobStore`, and `protocol.jobs.batches.store.BatchStore`."""

    def __init__(
        self,
        address: RedisAddress,
        name: str = "jobs",
        lease_seconds: float = 10.0,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        self._address = address
        self._prefix = key_prefix(name)
        self._limits = limits
        self._lease_ms = int(lease_seconds * 1000)
        self._server = secrets.token_hex(8)
        self._calls = itertools.count()
        self._thread = CommandThread(make_client(address, retries=0))
        self._pool = make_client(address, retries=0)
        self._limiter = trio.CapacityLimiter(_CONNECTIONS)
        waiting = replace(address, socket_seconds=address.socket_seconds + BEAT_SECONDS)
        watched = WatchedStore(self._prefix, self._server, lease_seconds, self._recover_arguments)
        self._watch = Watch(make_client(waiting, retries=0), watched)
        # What is claimed by this server as far as it knows: where an answer was lost, Redis may know of more.
        self._claimed: set[tuple[str, int, int]] = set()
        self._is_unsure = False
        self._now = 0.0
        self._is_open = False

    async def open(self, now: float) -> None:
        self._now = now
        try:
            await trio.to_thread.run_sync(check_server, self._pool)
            await self._thread.open()
            await self._call("beat", self._lease_ms)
        except (redis.RedisError, OSError) as error:
            raise UnusableStore(f"the job store cannot be opened: {server_error(error).message}") from None
        except ServerError as error:
            raise UnusableStore(f"the job store cannot be opened: {error.message}") from None
        self._is_open = True
        self._watch.open()

    async def close(self) -> None:
        self._watch.stop()
        if self._is_open:
            with suppress(ServerError):
                await self._call("wake")
        await self._watch.close()
        if self._is_open:
            with suppress(ServerError):  # where Redis is away, others see it by and by
                while not (await self._call("recover", *self._recover_arguments(self._server)))[1]:
                    pass
        self._is_open = False
        await self._thread.close()
        await trio.to_thread.run_sync(self._pool.close)

    async def changes(self) -> Sequence[JobChange]:
        return await self._watch.changes()

    async def add(self, job: NewJob, now: float) -> tuple[Job, bool]:
        self._now = now
        size = _checked_size(job.items)
        head = codec.new_job(job, now)
        tail = [self._limits.byte_size, MOST_DELIVERIES, size, len(job.items), *codec.new_items(job.items)]
        what, *rest = await self._with_room("add", size, "the job", [*head, *tail])
        if what == b"mismatch":
            raise IdempotencyMismatch(
                f"Idempotency-Key '{job.key[:64]}' was used for another request; it may come again with the same one"
            )
        if what == b"deliveries":
            raise too_many_deliveries(job.owner)
        return codec.read_job(rest[0]), what == b"made"

    async def find(self, owner: str | None, job_id: str) -> Job | None:
        return _job(await self._again("find", job_id, owner or "", int(owner is not None)))

    async def jobs(self, owner: str, which: JobFilter, after: str, limit: int) -> Sequence[Job]:
        kind, states, model = codec.filter_texts(which)
        found: list[Job] = []
        while len(found) < limit:
            last, rows = await self._again("jobs", owner, kind, states, model, after, limit - len(found))
            found += map(codec.read_job, rows)
            after = codec.text(last)
            if not after:
                break
        return found

    async def items(self, job_id: str, first: int, limit: int, *, results: bool = False) -> Sequence[Item]:
        arguments = (job_id, first, limit, int(results), _MOST_RESULT_BYTES)
        call = self._apart if results else self._again
        return [codec.read_item(row) for row in await call("items", *arguments)]

    async def claim(self, room: Mapping[str, int], default: int, now: float) -> Sequence[Claim]:
        self._now = now
        if self._is_unsure:
            await self._give_back_unknown(now)
        rooms: list[Argument] = [each for pair in room.items() for each in pair]
        try:
            rows = await self._call("claim", repr(now), self._lease_ms, default, *rooms)
        except Disconnected:
            self._is_unsure = True
            raise
        claims = [codec.read_claim(row) for row in rows]
        self._claimed |= {(claim.job_id, claim.index, claim.claim) for claim in claims}
        return claims

    async def _give_back_unknown(self, now: float) -> None:
        """What was claimed for this server by a call whose answer it has not got. Raises ServerError."""
        rows = await self._call("running")
        known = {(codec.text(job_id), int(index), int(claim)) for job_id, index, claim in rows}
        for job_id, index, claim in known - self._claimed:
            await self._finish(Outcome(job_id, index, claim, JobState.QUEUED, is_counted=False), now)
        self._is_unsure = False

    async def request(self, claim: Claim) -> Buffer:
        if claim.place == "":
            return claim.request
        found: bytes | None = await self._apart("request", claim.job_id, claim.index)
        if found is None:
            raise Internal("the request is not in the job store any more")
        return found

    async def finish(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Job | None]:
        self._now = now
        jobs: list[Job | None] = [None] * len(outcomes)
        errors: list[ServerError] = []

        async def finish(place: int, outcome: Outcome) -> None:
            try:
                jobs[place] = await self._finish(outcome, now)
            except ServerError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:  # the thread makes one exchange of what comes together
            for place, outcome in enumerate(outcomes):
                nursery.start_soon(finish, place, outcome)
        if errors:
            raise errors[0]
        return jobs

    async def _finish(self, outcome: Outcome, now: float) -> Job | None:
        """Raises ServerError."""
        check_item_move(JobState.RUNNING, outcome.state)
        result = b"".join(outcome.result)
        if len(result) > LARGEST:
            text = f"the result has {len(result)} bytes, and a job store in Redis keeps at most {LARGEST} of each"
            outcome = replace(outcome, state=JobState.FAILED, error=ItemError(InsufficientStorage.kind, text))
            result = b""
        call = self._call if len(result) <= LARGE else self._apart_once
        answer = await call(
            "finish",
            outcome.job_id,
            outcome.index,
            outcome.claim,
            outcome.state,
            int(bool(result) or outcome.state is JobState.SUCCEEDED),
            result,
            codec.error_text(outcome.error),
            repr(outcome.not_before or now),
            int(outcome.is_counted),
            repr(now),
        )
        self._claimed.discard((outcome.job_id, outcome.index, outcome.claim))
        return _job(answer)

    async def cancel(self, owner: str, job_id: str, now: float) -> Job | None:
        return _job(await self._again("cancel", job_id, owner, repr(now)))

    async def remove(self, owner: str, job_id: str) -> bool:
        return bool(await self._call("remove", job_id, owner))

    async def expire(self, now: float) -> Sequence[str]:
        self._now = now
        ended = await self._call("expire", repr(now), repr(now - self._limits.keep_seconds))
        return [codec.text(job_id) for job_id in ended]

    async def sources(self) -> Sequence[tuple[Job, Progress]]:
        rows = await self._again("sources")
        return [(codec.read_job(job), codec.read_progress(progress)) for job, progress in rows]

    async def extend(
        self, job_id: str, items: Sequence[NewItem], progress: Progress, now: float, error: ItemError | None = None
    ) -> Job | None:
        size = _checked_size(items)
        told = error or next((item.error for item in reversed(items) if item.error is not None), None)
        head: list[Argument] = [job_id, *codec.progress_texts(progress), codec.error_text(told), repr(now)]
        tail = [self._limits.byte_size, size, len(items), *codec.new_items(items)]
        return _kept(await self._with_room("extend", size, "the job", [*head, *tail]))

    async def drain(self, job_id: str, progress: Progress, now: float) -> Job | None:
        return _kept(await self._again("drain", job_id, *codec.progress_texts(progress)))

    async def close_source(
        self, job_id: str, now: float, state: JobState | None = None, error: ItemError | None = None
    ) -> Job | None:
        return _kept(await self._again("close_source", job_id, state or "", codec.error_text(error), repr(now)))

    async def figures(self) -> StoreFigures:
        return codec.read_figures(await self._again("figures"))

    async def claim_deliveries(self, room: DeliveryRoom, now: float, until: float) -> Sequence[Delivery]:
        rows = await self._call("claim_deliveries", repr(now), repr(until), *codec.delivery_room(room))
        return [codec.read_delivery(row) for row in rows]

    async def settle_delivery(self, delivery: Delivery, again: float | None) -> None:
        await self._again("settle_delivery", delivery.id, "" if again is None else repr(again))

    async def link_secret(self) -> bytes:
        found: bytes = await self._again("secret", secrets.token_bytes(32))
        return found

    # Calls of the script.

    async def _call(self, name: str, *arguments: Argument) -> Any:
        return await self._thread.call(self._command(name, arguments))

    async def _again(self, name: str, *arguments: Argument) -> Any:
        """One that may be made twice: a connection that was closed meanwhile is made anew."""
        try:
            return await self._call(name, *arguments)
        except Disconnected:
            return await self._call(name, *arguments)

    async def _apart(self, name: str, *arguments: Argument) -> Any:
        """One with a large answer, and which may be made twice."""
        try:
            return await self._apart_once(name, *arguments)
        except Disconnected:
            return await self._apart_once(name, *arguments)

    async def _apart_once(self, name: str, *arguments: Argument) -> Any:
        sent = self._command(name, arguments)
        try:
            (answer,) = await trio.to_thread.run_sync(
                run_commands, self._pool, [sent], abandon_on_cancel=True, limiter=self._limiter
            )
        except (redis.RedisError, OSError) as error:
            raise server_error(error) from None
        if isinstance(answer, Exception):
            raise server_error(answer)
        return answer

    def _command(self, name: str, arguments: Sequence[Argument]) -> list[bytes | int | float]:
        nonce = f"{self._server}{next(self._calls):x}"
        return command(self._prefix, name, nonce, self._server, arguments)

    async def _with_room(self, name: str, size: int, what: str, arguments: Sequence[Argument]) -> Sequence[Any]:
        """One that may be made twice, and for which something may have to be forgotten. Raises InsufficientStorage."""
        call = self._again if size <= LARGE else self._apart
        while True:
            answer: Sequence[Any] = await call(name, *arguments)
            if answer[0] == b"full":
                raise InsufficientStorage(
                    f"{what} has {size} bytes and the jobs and files that are kept hold {int(answer[1])} of "
                    f"{self._limits.byte_size}. Use --jobs-max-bytes to keep more."
                )
            if answer[0] != b"more":
                return answer

    def _recover_arguments(self, server: str) -> Sequence[Argument]:
        most = self._limits.max_interruptions
        text = f"the server ended {most} times while this ran; see --jobs-max-interruptions"
        return server, most, repr(self._now), codec.error_text(ItemError(Internal.kind, text))


def _job(answer: Any) -> Job | None:
    return None if answer is None else codec.read_job(answer)


def _kept(answer: Sequence[Any]) -> Job | None:
    """Raises Unavailable."""
    if answer[0] == b"lost":
        raise Unavailable("another server goes on with this job")
    return _job(answer[1])


def _checked_size(items: Sequence[NewItem]) -> int:
    """Of all requests. Raises PayloadTooLarge."""
    sizes = [sum(memoryview(part).nbytes for part in item.request) for item in items]
    if max(sizes, default=0) > LARGEST or sum(sizes) > LARGEST_TOGETHER:
        raise PayloadTooLarge(
            f"the requests have {sum(sizes)} bytes, the largest {max(sizes)}; a job store in Redis takes at most "
            f"{LARGEST_TOGETHER} at once, and {LARGEST} of each"
        )
    return sum(sizes)
