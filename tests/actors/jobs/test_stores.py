"""What every job store promises, of each that comes with the server: jobs, their items, sources, webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from protocol.errors import InsufficientStorage
from protocol.jobs.job import Counts, ItemError, Job, new_job_id
from protocol.jobs.source import DataFormat, DataPlace, JobSource, Position, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import IdempotencyMismatch, JobFilter, JobStore, Limits, NewItem, NewJob, Outcome
from protocol.jobs.webhook import EVENT_STATES, DeliveryRoom, Webhook
from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.actors.jobs.stores import RedisStores, SqliteStores, Stores, finish_one

LIMITS = Limits(reserve=0)
NOW = 1_800_000_000.0
LATER = NOW + 1
ROOM = DeliveryRoom(total=64, per_host=4, per_owner=8)
SOURCE = JobSource("m", DataPlace("/in", DataFormat.NPZ), DataPlace("/out", DataFormat.JSON_LINES))
METADATA = {"a": "ä\ud800"}  # JSON may have half a character

Open: TypeAlias = Callable[..., AbstractAsyncContextManager[JobStore]]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis_server)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "sqlite":
        return SqliteStores(tmp_path)
    return RedisStores(request.getfixturevalue("redis_server").port)


@pytest.fixture
def opened(stores: Stores) -> Open:
    """Opens a store, and closes it in order; one after the other they are at the same place."""

    @asynccontextmanager
    async def opened(limits: Limits = LIMITS) -> AsyncIterator[JobStore]:
        store = stores.make(limits)
        await store.open(NOW)
        try:
            yield store
        finally:
            with trio.CancelScope(shield=True):
                await store.close()

    return opened


def new(*requests: bytes, owner: str = "ann", key: str = "", fingerprint: bytes = b"") -> NewJob:
    items = [NewItem("m", [request]) for request in requests]
    return NewJob(new_job_id(NOW), owner, items, NOW + 100, model="m", key=key, fingerprint=fingerprint)


async def succeed(store: JobStore, result: bytes) -> Job:
    (claim,) = await store.claim({}, 1, NOW)
    done = await finish_one(store, Outcome(claim.job_id, claim.index, claim.claim, JobState.SUCCEEDED, [result]), NOW)
    assert done is not None
    return done


async def test_outcomes_are_stored_together(opened: Open) -> None:
    """Those that are not of the current claim change nothing, and hold no other up."""
    async with opened() as store:
        first, _ = await store.add(new(b"a", b"b", b"c"), NOW)
        second, _ = await store.add(new(b"d"), NOW)
        claims = await store.claim({"m": 10}, 10, NOW)
        ends = [Outcome(each.job_id, each.index, each.claim, JobState.SUCCEEDED, [b"result"]) for each in claims]
        ends[1] = replace(ends[1], state=JobState.FAILED, result=(), error=ItemError("INTERNAL", "no"))
        late = replace(ends[2], claim=ends[2].claim + 1)
        jobs = await store.finish([ends[0], late, ends[1], ends[3]], LATER)
        assert [None if job is None else job.id for job in jobs] == [first.id, None, first.id, second.id]
        found = await store.find("ann", first.id)
        assert found is not None
        assert (found.counts.succeeded, found.counts.failed, found.counts.running) == (1, 1, 1)
        assert jobs[3] is not None
        assert (jobs[3].state, jobs[3].byte_size) == (JobState.SUCCEEDED, 7)
        (job,) = await store.finish([ends[2]], LATER)
        assert job is not None
        assert (job.state, job.byte_size, job.counts.succeeded) == (JobState.SUCCEEDED, 15, 2)
        items = await store.items(first.id, 0, 10, results=True)
        assert [item.result for item in items] == [b"result", None, b"result"]


async def test_a_job_and_its_result_outlive_the_store(opened: Open) -> None:
    async with opened() as store:
        item = NewItem("m", [b"req", memoryview(b"uest")], custom_id="ö", form=b"\xff")
        made = replace(new(), items=[item], metadata=METADATA, version=3, kind="k")
        job, is_made = await store.add(made, NOW)
        assert is_made
        (claim,) = await store.claim({}, 1, NOW)
        assert await store.request(claim) == b"request"
        assert (claim.owner, claim.kind, claim.deadline, claim.byte_size) == ("ann", "k", NOW + 100, 7)
        done = await finish_one(store, Outcome(job.id, 0, claim.claim, JobState.SUCCEEDED, [b"re", b"sult"]), LATER)
        assert done is not None
        assert (done.state, done.started, done.ended) == (JobState.SUCCEEDED, NOW, LATER)
    async with opened() as store:
        found = await store.find("ann", job.id)
        assert found == done
        assert (found.metadata, found.version, found.byte_size) == (METADATA, 3, 13)
        (got,) = await store.items(job.id, 0, 10, results=True)
        assert (got.result, got.custom_id, got.form) == (b"result", "ö", b"\xff")
        (got,) = await store.items(job.id, 0, 10)
        assert got.result is None
        assert await store.find("bob", job.id) is None
        assert await store.find(None, job.id) == done
        assert not await store.remove("bob", job.id)
        assert await store.remove("ann", job.id)
        assert await store.find("ann", job.id) is None
        assert (await store.figures()).byte_size == 0


async def test_what_ran_is_queued_again_and_its_late_result_is_dropped(opened: Open) -> None:
    async with opened() as store:
        job, _ = await store.add(new(b"a"), NOW)
        (claim,) = await store.claim({}, 1, NOW)
    async with opened() as store:
        late = Outcome(job.id, 0, claim.claim, JobState.SUCCEEDED, [b"late"])
        assert await finish_one(store, late, NOW) is None
        (again,) = await store.claim({}, 1, NOW)
        assert (again.attempt, again.claim) == (2, claim.claim + 1)
        assert await finish_one(store, late, NOW) is None
        assert await finish_one(store, replace(late, claim=again.claim, result=[b"own"]), NOW) is not None
        assert await finish_one(store, replace(late, claim=again.claim, result=[b"twice"]), NOW) is None
        (item,) = await store.items(job.id, 0, 1, results=True)
        assert item.result == b"own"


async def test_an_item_that_fails_says_why_and_may_have_a_result(opened: Open) -> None:
    async with opened() as store:
        error = ItemError("INTERNAL", "nö")
        bad = NewItem("m", (), error=ItemError("INVALID_ARG", "no row"))
        job, _ = await store.add(replace(new(b"a"), items=[*new(b"a").items, bad]), NOW)
        assert job.counts == Counts(queued=1, failed=1)
        (claim,) = await store.claim({"m": 5}, 1, NOW)
        done = await finish_one(store, Outcome(job.id, 0, claim.claim, JobState.FAILED, [b"told"], error), NOW)
        assert done is not None
        assert (done.state, done.error) == (JobState.FAILED, error)
        first, second = await store.items(job.id, 0, 10, results=True)
        assert (first.error, first.result) == (error, b"told")
        assert (second.error, second.state) == (bad.error, JobState.FAILED)


async def test_an_idempotency_key_is_its_owners(opened: Open) -> None:
    async with opened() as store:
        first, is_made = await store.add(new(b"a", key="k", fingerprint=b"\xff1"), NOW)
        again, is_made_again = await store.add(new(b"a", key="k", fingerprint=b"\xff1"), NOW)
        assert (is_made, is_made_again, again.id) == (True, False, first.id)
        with pytest.raises(IdempotencyMismatch, match="'k' was used for another request"):
            await store.add(new(b"b", key="k", fingerprint=b"2"), NOW)
        other, is_made = await store.add(new(b"a", owner="bob", key="k", fingerprint=b"2"), NOW)
        assert is_made
        assert other.id != first.id
        await store.cancel("ann", first.id, NOW)
        await store.remove("ann", first.id)
        _, is_made = await store.add(new(b"b", key="k", fingerprint=b"2"), NOW)
        assert is_made


async def test_jobs_that_come_at_once_are_all_there_once_and_the_oldest_runs_first(opened: Open) -> None:
    async with opened() as store:
        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(store.add, new(b"a"), NOW)
        claims = await store.claim({}, 1000, NOW)
        assert len({claim.job_id for claim in claims}) == len(claims) == 500
        ids = [(await store.add(new(b"a"), NOW + number))[0].id for number in range(5)]
        assert [claim.job_id for claim in await store.claim({"m": 3}, 1, NOW + 5)] == ids[:3]
        assert await store.claim({"m": 0}, 1, NOW + 5) == []


async def test_a_page_of_jobs(opened: Open) -> None:
    async with opened() as store:
        made = [
            (await store.add(replace(new(b"a"), id=new_job_id(NOW + number)), NOW + number))[0].id
            for number in range(5)
        ]
        await succeed(store, b"")
        newest = await store.jobs("ann", JobFilter(), "", 2)
        assert [job.id for job in newest] == [made[4], made[3]]
        assert [job.id for job in await store.jobs("ann", JobFilter(), made[3], 10)] == made[2::-1]
        queued = JobFilter(frozenset({JobState.QUEUED}), "m")
        assert [job.id for job in await store.jobs("ann", queued, "", 10)] == made[:0:-1]
        assert await store.jobs("ann", JobFilter(model="other"), "", 10) == []
        assert await store.jobs("ann", JobFilter(kind="other"), "", 10) == []
        assert await store.jobs("bob", JobFilter(), "", 10) == []


async def test_a_filter_finds_what_is_far_behind(opened: Open) -> None:
    async with opened() as store:
        first, _ = await store.add(replace(new(b"a"), id="job_0", model="first"), NOW)
        async with trio.open_nursery() as nursery:
            for _ in range(1100):
                nursery.start_soon(store.add, new(), NOW)
        assert [job.id for job in await store.jobs("ann", JobFilter(model="first"), "", 1)] == [first.id]
        assert len(await store.jobs("ann", JobFilter(), "", 1100)) == 1100


async def test_results_come_some_at_a_time(opened: Open) -> None:
    async with opened() as store:
        job, _ = await store.add(new(*[b"a"] * 20), NOW)
        for claim in await store.claim({"m": 20}, 1, NOW):
            await finish_one(
                store, Outcome(job.id, claim.index, claim.claim, JobState.SUCCEEDED, [bytes(60_000)] * 8), NOW
            )
        seen: list[int] = []
        while len(seen) < 20:
            some = await store.items(job.id, len(seen), 100, results=True)
            assert 0 < len(some) < 20
            seen += [item.index for item in some]
        assert seen == list(range(20))
        assert [item.index for item in await store.items(job.id, 7, 3)] == [7, 8, 9]


async def test_what_is_over_the_limit_is_refused_until_ended_jobs_make_room(opened: Open) -> None:
    async with opened(replace(LIMITS, byte_size=1000)) as store:
        first, _ = await store.add(new(bytes(600)), NOW)
        with pytest.raises(InsufficientStorage, match=r"the job has 500 bytes and .* hold 600 of 1000"):
            await store.add(new(bytes(500)), NOW)
        await succeed(store, b"")
        await store.add(new(bytes(500)), NOW)
        assert await store.find("ann", first.id) is None


async def test_many_small_jobs_make_room_for_a_large_one(opened: Open) -> None:
    async with opened(replace(LIMITS, byte_size=1000)) as store:
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(store.add, new(b"12345"), NOW)
        for claim in await store.claim({"m": 200}, 1, NOW):
            await finish_one(store, Outcome(claim.job_id, 0, claim.claim, JobState.SUCCEEDED), NOW)
        await store.add(new(bytes(900)), NOW)
        assert (await store.figures()).byte_size <= 1000


async def test_what_is_kept_for_long_enough_is_forgotten(opened: Open) -> None:
    async with opened(replace(LIMITS, keep_seconds=10.0)) as store:
        job, _ = await store.add(new(b"a", key="k"), NOW)
        late, _ = await store.add(replace(new(b"a"), deadline=NOW + 5), NOW)
        await succeed(store, b"r")
        assert await store.expire(NOW + 5) == [late.id]
        assert await store.expire(NOW + 9) == []
        assert await store.find("ann", job.id) is not None
        await store.expire(NOW + 10)
        assert await store.find("ann", job.id) is None
        await store.expire(NOW + 15)
        figures = await store.figures()
        assert (sum(figures.jobs.values()), figures.oldest, figures.byte_size) == (0, 0.0, 0)


async def test_the_secret_of_links_is_made_once(opened: Open) -> None:
    async with opened() as store:
        secret = await store.link_secret()
        assert await store.link_secret() == secret
    async with opened() as store:
        assert await store.link_secret() == secret
    assert len(secret) >= 32


# Sources.


async def add_source(store: JobStore) -> Job:
    job, _ = await store.add(NewJob("job_1", "ann", (), NOW + 100, model="m", source=SOURCE), NOW)
    return job


def at(row: int, written: int = 0, *, is_read: bool = False) -> Progress:
    return Progress(Position(row, "a", "1", row), is_read, written)


def rows(*requests: bytes) -> list[NewItem]:
    """An empty one is a row that could not be read."""
    bad = ItemError("INVALID_ARG", "no")
    return [NewItem("m", [request]) if request else NewItem("m", [], error=bad) for request in requests]


async def finish(store: JobStore, state: JobState, results: Sequence[bytes]) -> Job | None:
    job = None
    for claim, result in zip(await store.claim({"m": len(results)}, 1, NOW), results, strict=True):
        parts = [result] if state is JobState.SUCCEEDED else []
        job = await finish_one(store, Outcome(claim.job_id, claim.index, claim.claim, state, parts), NOW)
    return job


async def test_rows_come_are_run_and_go(opened: Open) -> None:
    async with opened() as store:
        made = await add_source(store)
        assert (made.state, made.counts, made.source) == (JobState.QUEUED, Counts(), SOURCE)
        job = await store.extend(made.id, rows(b"aa", b"", b"cc"), at(3), NOW)
        assert job is not None
        assert (job.counts, job.byte_size) == (Counts(queued=2, failed=1), 4)
        assert job.error == ItemError("INVALID_ARG", "no")
        job = await finish(store, JobState.SUCCEEDED, [b"rrr", b"sss"])
        assert job is not None
        assert (job.state, job.counts, job.byte_size) == (JobState.RUNNING, Counts(succeeded=2, failed=1), 10)
        job = await store.drain(made.id, at(3, 2), NOW)
        assert job is not None
        assert (job.written, job.byte_size, job.counts) == (2, 5, Counts(succeeded=2, failed=1))
        assert [item.index for item in await store.items(made.id, 0, 10)] == [2]
    async with opened() as store:
        ((job, progress),) = await store.sources()
        assert progress == at(3, 2)
        await store.extend(made.id, rows(b"d"), at(4, 2, is_read=True), NOW)
        assert [item.index for item in await store.items(made.id, 0, 10)] == [2, 3]
        await finish(store, JobState.SUCCEEDED, [b"t"])
        job = await store.close_source(made.id, LATER)
        assert job is not None
        assert (job.state, job.ended, job.byte_size) == (JobState.SUCCEEDED, LATER, 0)
        assert await store.sources() == []
        assert await store.items(made.id, 0, 10) == []
        assert await store.remove("ann", made.id)
        assert (await store.figures()).byte_size == 0


async def test_rows_that_find_no_room_are_not_added(opened: Open) -> None:
    async with opened(Limits(byte_size=300, reserve=0)) as store:
        job = await add_source(store)
        await store.extend(job.id, rows(bytes(200)), at(1), NOW)
        with pytest.raises(InsufficientStorage):
            await store.extend(job.id, rows(bytes(200)), at(2), NOW)
        ((found, progress),) = await store.sources()
        assert (progress, found.counts.total) == (at(1), 1)


async def test_a_job_with_a_source_that_is_cancelled_ends_when_it_is_closed(opened: Open) -> None:
    async with opened() as store:
        made = await add_source(store)
        await store.extend(made.id, rows(b"a", b"b", b"c"), at(3), NOW)
        (claim, other) = await store.claim({"m": 2}, 1, NOW)
        job = await store.cancel("ann", made.id, NOW)
        assert job is not None
        assert (job.state, job.counts) == (JobState.CANCELLING, Counts(running=2, cancelled=1))
        job = await store.extend(made.id, rows(b"d"), at(4), NOW)
        assert job is not None
        assert job.counts.total == 3
        job = await store.close_source(made.id, NOW, JobState.EXPIRED)
        assert job is not None
        assert job.state is JobState.CANCELLING
        for each in (claim, other):
            await finish_one(store, Outcome(made.id, each.index, each.claim, JobState.CANCELLED), NOW)
        job = await store.close_source(made.id, NOW, JobState.EXPIRED)
        assert job is not None
        assert (job.state, job.counts) == (JobState.CANCELLED, Counts(cancelled=3))


async def test_a_job_with_a_source_of_which_nothing_runs_is_cancelled_and_closed(opened: Open) -> None:
    async with opened() as store:
        made = await add_source(store)
        job = await store.cancel("ann", made.id, NOW)
        assert job is not None
        assert job.state is JobState.CANCELLING
        assert not await store.remove("ann", made.id)
    async with opened() as store:
        assert [job.state for job, _ in await store.sources()] == [JobState.CANCELLING]
        job = await store.close_source(made.id, NOW)
        assert job is not None
        assert job.state is JobState.CANCELLED


async def test_rows_that_are_queued_beyond_the_deadline_expire(opened: Open) -> None:
    async with opened() as store:
        made = await add_source(store)
        await store.extend(made.id, rows(b"a", b"b"), at(2), NOW)
        assert await store.expire(NOW + 101) == []
        job = await store.close_source(made.id, NOW + 101, JobState.EXPIRED)
        assert job is not None
        assert (job.state, job.counts) == (JobState.EXPIRED, Counts(expired=2))


async def test_a_fault_ends_a_job_with_a_source(opened: Open) -> None:
    async with opened() as store:
        made = await add_source(store)
        await store.extend(made.id, rows(b"a", b"b"), at(2), NOW)
        error = ItemError("NOT_FOUND", "gone")
        job = await store.close_source(made.id, NOW, JobState.FAILED, error)
        assert job is not None
        assert (job.state, job.error, job.counts) == (JobState.FAILED, error, Counts(cancelled=2))
        assert await store.close_source(made.id, NOW) == job


async def test_jobs_that_are_gone(opened: Open) -> None:
    async with opened() as store:
        assert await store.extend("job_0", rows(b"a"), at(1), NOW) is None
        assert await store.drain("job_0", at(1, 1), NOW) is None
        assert await store.close_source("job_0", NOW) is None
        assert await store.cancel("ann", "job_0", NOW) is None
        assert await store.items("job_0", 0, 10) == []
        assert not await store.remove("ann", "job_0")
        assert await finish_one(store, Outcome("job_0", 0, 1, JobState.SUCCEEDED), NOW) is None


# Deliveries.


async def add_told(
    store: JobStore, *, host: str = "https://a", owner: str = "ann", states: tuple[JobState, ...] = EVENT_STATES
) -> Job:
    webhook = Webhook(f"{host}/hook", host, frozenset(states))
    job, _ = await store.add(replace(new(b"r", owner=owner), metadata=METADATA, webhook=webhook), NOW)
    return job


async def test_each_state_that_is_told_makes_a_delivery(opened: Open) -> None:
    async with opened() as store:
        await add_told(store)
        assert await store.claim_deliveries(ROOM, NOW, NOW + 60) == []
        ended = await succeed(store, b"r")
        found = {each.state: each for each in await store.claim_deliveries(ROOM, NOW, NOW + 60)}
        assert found.keys() == {JobState.RUNNING, JobState.SUCCEEDED}
        running, succeeded = found[JobState.RUNNING], found[JobState.SUCCEEDED]
        assert (running.job.state, running.job.counts.running) == (JobState.RUNNING, 1)
        assert (succeeded.job, succeeded.created, succeeded.attempt) == (ended, NOW, 1)
        assert (succeeded.url, succeeded.owner) == ("https://a/hook", "ann")
        assert running.id != succeeded.id
        await add_told(store, states=(JobState.FAILED,))
        await succeed(store, b"r")
        assert await store.claim_deliveries(ROOM, NOW, NOW + 60) == []


async def test_a_claim_of_a_delivery_hides_it_and_does_not_lose_it(opened: Open) -> None:
    async with opened() as store:
        job = await add_told(store, states=(JobState.SUCCEEDED,))
        await succeed(store, b"r")
        assert await store.remove("ann", job.id)  # it outlives its job
        (first,) = await store.claim_deliveries(ROOM, NOW, NOW + 60)
        assert await store.claim_deliveries(ROOM, NOW + 59, NOW + 120) == []
        (second,) = await store.claim_deliveries(ROOM, NOW + 60, NOW + 120)
        assert (second.id, second.attempt, second.job.metadata) == (first.id, 2, METADATA)
        await store.settle_delivery(second, NOW + 70)
        assert await store.claim_deliveries(ROOM, NOW + 69, NOW + 120) == []
    async with opened() as store:
        (third,) = await store.claim_deliveries(ROOM, NOW + 70, NOW + 120)
        await store.settle_delivery(third, None)
        assert await store.claim_deliveries(ROOM, NOW + 1000, NOW + 1060) == []


async def test_a_host_or_an_owner_has_its_share_and_others_theirs(opened: Open) -> None:
    async with opened() as store:
        dead = ["https://dead"] * 20 + [f"https://dead{n}" for n in range(20)]
        for owner, hosts in (("ann", dead), ("bob", ["https://b"])):
            for host in hosts:
                await add_told(store, host=host, owner=owner, states=(JobState.SUCCEEDED,))
                await succeed(store, b"r")
        claimed = await store.claim_deliveries(ROOM, NOW, NOW + 60)
        hosts = [each.host for each in claimed]
        assert (len(claimed), hosts.count("https://b")) == (9, 1)
        assert hosts.count("https://dead") <= 4
        busy = DeliveryRoom(total=64, per_host=4, per_owner=8, hosts={"https://dead": 4}, owners={"ann": 7})
        assert [each.owner for each in await store.claim_deliveries(busy, NOW, NOW + 60)] == ["ann"]
        full = DeliveryRoom(total=2, per_host=4, per_owner=8, hosts={"https://c": 2})
        assert await store.claim_deliveries(full, NOW, NOW + 60) == []


async def test_what_was_tried_least_is_delivered_first(opened: Open) -> None:
    async with opened() as store:
        for number in range(4):
            await add_told(store, host=f"https://{number}", states=(JobState.SUCCEEDED,))
            await succeed(store, b"r")
        for tried in await store.claim_deliveries(DeliveryRoom(3, 4, 8), NOW, NOW + 60):
            await store.settle_delivery(tried, NOW)
        (next_one,) = await store.claim_deliveries(DeliveryRoom(1, 4, 8), NOW, NOW + 60)
        assert next_one.attempt == 1
