"""Batches and files of every job store that comes with the server: whose they are, what outlives a crash, what is
forgotten and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from actors.jobs.batches.batches import FullStore
from protocol.errors import InsufficientStorage, InvalidArgument, NotFound
from protocol.jobs.batches.batch import BATCH_KIND, Batch, BatchState, LineCounts, LineError, TokenUsage
from protocol.jobs.batches.files import INPUT, OUTPUT, new_file_id
from protocol.jobs.job import new_job_id
from protocol.jobs.states import JobState
from protocol.jobs.store import IdempotencyMismatch, JobFilter, Limits, NewItem, NewJob, Outcome
from protocol.jobs.webhook import DeliveryRoom, Webhook
from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.actors.jobs.batch_samples import LATER, NOW, batch_of, finished, kept
from tests.actors.jobs.stores import RedisStores, SqliteStores, Stores, finish_one

LIMITS = Limits(reserve=0)
HOOK = Webhook("https://a/hook", "https://a", frozenset({JobState.SUCCEEDED}))
ROOM = DeliveryRoom(total=64, per_host=4, per_owner=8)


Open: TypeAlias = Callable[..., AbstractAsyncContextManager[FullStore]]


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
    async def opened(limits: Limits = LIMITS) -> AsyncIterator[FullStore]:
        store = stores.make(limits)
        await store.open(NOW)
        try:
            yield store
        finally:
            with trio.CancelScope(shield=True):
                await store.close()

    return opened


async def test_a_file_outlives_the_store_and_is_read_in_pieces(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"one\ntwo\n")
    async with opened() as store:
        assert await store.find_file("ann", file.id) == file
        assert await store.read_file(file.payload, 4, 100) == b"two\n"
        assert await store.read_file(file.payload, 8, 100) == b""


async def test_a_file_exists_for_its_owner_only(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        assert await store.find_file("bob", file.id) is None
        assert await store.files("bob", "", "", 10) == []
        assert not await store.remove_file("bob", file.id)
        assert await store.remove_file("ann", file.id)
        assert await store.find_file("ann", file.id) is None
        with pytest.raises(NotFound):
            await store.read_file(file.payload, 0, 1)


async def test_files_are_listed_in_pages_by_purpose_and_order(opened: Open) -> None:
    async with opened() as store:
        files = [await kept(store, b"x", created=NOW + i, purpose=OUTPUT if i == 2 else INPUT) for i in range(4)]
        ids = [file.id for file in files]
        assert [file.id for file in await store.files("ann", "", "", 2)] == [ids[3], ids[2]]
        assert [file.id for file in await store.files("ann", "", ids[2], 10)] == [ids[1], ids[0]]
        assert [file.id for file in await store.files("ann", "", ids[0], 10, ascending=True)] == ids[1:]
        assert [file.id for file in await store.files("ann", OUTPUT, "", 10)] == [ids[2]]


async def test_uploads_are_refused_where_all_together_have_no_room(opened: Open) -> None:
    async with opened(Limits(byte_size=2000, reserve=0)) as store:
        await kept(store, b"x" * 700)
        first, second = await store.file_writer(), await store.file_writer()
        await first.write(b"x" * 500)
        with pytest.raises(InsufficientStorage, match="--jobs-max-bytes"):
            await second.write(b"x" * 500)
        await second.close()
        await first.close()
        result = await store.file_writer(is_result=True)
        await result.write(b"x" * 5000)
        await result.close()


async def add_small_jobs(store: FullStore) -> None:
    """Nearly all have ended, and fill the store."""
    for number in range(200):
        await store.add(NewJob(new_job_id(NOW + number), "ann", [NewItem("m", [b"z" * 190])], NOW + 100), NOW)
    for claim in await store.claim({"m": 195}, 1, NOW):
        await finish_one(store, Outcome(claim.job_id, 0, claim.claim, JobState.SUCCEEDED, [b"r"]), NOW)


async def test_an_upload_makes_room_among_many_jobs_that_have_ended(opened: Open) -> None:
    async with opened(Limits(byte_size=40_000, reserve=0)) as store:
        await add_small_jobs(store)
        file = await kept(store, b"x" * 35_000)
        assert await store.find_file("ann", file.id) == file
        left = await store.jobs("ann", JobFilter(), "", 1000)
        assert sum(job.state is JobState.QUEUED for job in left) == 5
        assert len(left) < 30
        with pytest.raises(InsufficientStorage, match="--jobs-max-bytes"):
            await kept(store, b"x" * 39_000)


async def test_a_large_job_makes_room_among_many_small_ones(opened: Open) -> None:
    async with opened(Limits(byte_size=40_000, reserve=0)) as store:
        await add_small_jobs(store)
        large = NewJob(new_job_id(NOW + 1000), "ann", [NewItem("m", [b"z" * 35_000])], NOW + 100)
        job, is_made = await store.add(large, NOW)
        assert (job.byte_size, is_made) == (35_000, True)
        with pytest.raises(InsufficientStorage, match="the job has 39000 bytes"):
            await store.add(replace(large, id="job_2", items=[NewItem("m", [b"z" * 39_000])]), NOW)
        assert await store.find("ann", job.id) == job


async def test_the_files_of_ended_batches_make_room_the_oldest_first_and_no_others(opened: Open) -> None:
    async with opened(Limits(byte_size=6000, reserve=0)) as store:
        unused = await kept(store, b"x" * 1000)
        used = await kept(store, b"x" * 1000)
        await store.add_batch(batch := batch_of(used))
        done = await finished(store, batch, b"y" * 10)
        await store.add(NewJob(new_job_id(NOW), "ann", [NewItem("m", [b"z" * 2000])], NOW + 100), NOW)
        assert await store.find_file("ann", used.id) is None
        assert await store.find_file("ann", unused.id) is not None
        assert await store.find_file("ann", done.output_file) is not None


async def test_the_input_of_a_batch_that_has_not_ended_cannot_be_removed(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        await store.add_batch(batch := batch_of(file))
        with pytest.raises(InvalidArgument, match=batch.id):
            await store.remove_file("ann", file.id)
        await store.expire(LATER)
        assert await store.find_file("ann", file.id) is not None
        await finished(store, batch, b"")
        assert await store.remove_file("ann", file.id)


async def test_a_batch_of_a_file_that_is_gone_or_another_owners_is_refused(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        with pytest.raises(NotFound, match=file.id):
            await store.add_batch(replace(batch_of(file), owner="bob"))


async def test_a_batch_is_kept_as_it_is(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        await store.add_batch(replace(batch_of(file), metadata={"a": "b"}))
        (batch,) = await store.unended_batches()

        def fail(found: Batch) -> Batch:
            errors = (LineError("invalid_json_line", "wrong", 3, "custom_id"),)
            counted = replace(found, errors=errors, counts=LineCounts(3, 1, 2), usage=TokenUsage(1, 2, 3, 4))
            return counted.moved(BatchState.FAILED, NOW + 5)

        failed = await store.change_batch(batch.id, fail, (), LATER)
    async with opened() as store:
        assert await store.find_batch("ann", batch.id) == failed
        assert failed is not None
        assert failed.ended == NOW + 5
        assert await store.find_batch("bob", batch.id) is None
        assert await store.unended_batches() == []
        assert await store.change_batch("batch_none", fail) is None


async def test_a_batch_that_has_ended_stays_as_it_is(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        await store.add_batch(batch := batch_of(file))
        done = await finished(store, batch, b"out")
        writer = await store.file_writer(is_result=True)
        await writer.write(b"again")
        await writer.finish()
        again = replace(file, id=new_file_id(NOW), payload=writer.payload)
        found = await store.change_batch(batch.id, lambda found: replace(found, model="other"), [(again, writer)])
        await writer.close()
        assert found == done
        assert await store.find_file("ann", again.id) is None
        await store.expire(LATER - 1)
        assert await store.find_batch("ann", batch.id) == done


async def test_batches_are_listed_in_pages_the_newest_first(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        made = [batch_of(file, NOW + i) for i in range(3)]
        for batch in made:
            await store.add_batch(batch)
        assert [batch.id for batch in await store.batches("ann", "", 2)] == [made[2].id, made[1].id]
        assert [batch.id for batch in await store.batches("ann", made[1].id, 2)] == [made[0].id]
        assert await store.batches("bob", "", 2) == []


async def test_the_job_of_a_batch_is_held_until_its_files_are_written(opened: Open) -> None:
    async with opened(Limits(byte_size=4000, reserve=0, keep_seconds=1)) as store:
        file = await kept(store, b"x")
        await store.add_batch(batch := batch_of(file))
        job, _ = await store.add(NewJob(batch.id, "ann", [NewItem("m", [b"z"])], NOW + 9, kind=BATCH_KIND), NOW)
        (claim,) = await store.claim({}, 1, NOW)
        assert claim.kind == BATCH_KIND
        await finish_one(store, Outcome(job.id, 0, claim.claim, JobState.SUCCEEDED, [b"r"]), NOW)
        await store.expire(LATER)
        with pytest.raises(InsufficientStorage):
            await store.add(NewJob(new_job_id(NOW), "ann", [NewItem("m", [b"z" * 3500])], NOW + 100), NOW)
        assert await store.find("ann", job.id) is not None
        await finished(store, batch, b"out")
        assert await store.find("ann", job.id) is None


async def test_files_and_batches_are_forgotten_after_their_time(opened: Open) -> None:
    async with opened() as store:
        empty = (await store.figures()).byte_size
        file = await kept(store, b"x")
        await store.add_batch(batch := batch_of(file))
        done = await finished(store, batch, b"out")
        await store.change_batch(batch.id, lambda found: found)  # as when it is cancelled after its end
        await store.expire(LATER - 1)
        assert await store.find_batch("ann", batch.id) == done
        assert await store.find_file("ann", file.id) is None
        await store.expire(LATER)
        assert await store.find_batch("ann", batch.id) is None
        assert await store.find_file("ann", done.output_file) is None
        assert (await store.figures()).byte_size == empty


async def test_jobs_of_batches_are_no_jobs_of_the_list(opened: Open) -> None:
    async with opened() as store:
        await store.add(NewJob("batch_1", "ann", [NewItem("m", [b"z"])], NOW + 9, kind=BATCH_KIND), NOW)
        assert await store.jobs("ann", JobFilter(), "", 10) == []
        assert [job.id for job in await store.jobs("ann", JobFilter(kind=BATCH_KIND), "", 10)] == ["batch_1"]


async def test_an_idempotency_key_gives_the_batch_of_then(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        batch = batch_of(file)
        assert await store.add_batch(batch, "k", b"one") == (batch, True)
        other = batch_of(file, NOW + 1)
        assert await store.add_batch(other, "k", b"one") == (batch, False)
        assert await store.add_batch(other) == (other, True)
        with pytest.raises(IdempotencyMismatch, match="'k' was used for another batch"):
            await store.add_batch(other, "k", b"two")
        bobs = await kept(store, b"x", owner="bob")
        assert (await store.add_batch(batch_of(bobs, NOW + 2), "k", b"two"))[1]
    async with opened() as store:
        done = await finished(store, batch, b"out")
        await finished(store, other, b"out")
        assert await store.remove_file("ann", file.id)
        assert await store.add_batch(batch_of(file, NOW + 3), "k", b"one") == (done, False)
        await store.expire(LATER)
        again = batch_of(await kept(store, b"x"), LATER)
        assert await store.add_batch(again, "k", b"two") == (again, True)


async def test_the_end_of_a_batch_is_told_where_its_webhook_wants_that(opened: Open) -> None:
    async with opened() as store:
        file = await kept(store, b"x")
        told = replace(batch_of(file), webhook=HOOK)
        untold = replace(batch_of(file), webhook=replace(HOOK, states=frozenset({JobState.FAILED})))
        for batch in (told, untold):
            await store.add_batch(batch)
            await finished(store, batch, b"out")
            await store.change_batch(batch.id, lambda found: found)  # which has ended: it is not told again
    async with opened() as store:
        (delivery,) = await store.claim_deliveries(ROOM, LATER, LATER + 60)
        assert (delivery.state, delivery.url, delivery.host) == (JobState.SUCCEEDED, HOOK.url, HOOK.host)
        assert (delivery.job.id, delivery.job.kind, delivery.job.ended) == (told.id, BATCH_KIND, NOW)
