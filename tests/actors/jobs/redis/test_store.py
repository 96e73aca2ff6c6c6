"""The Redis job store: what several servers share, what a lost answer, an outage and a full memory do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import trio

from actors.jobs.redis import store as module
from actors.jobs.redis.errors import Disconnected
from actors.jobs.redis.store import RedisStore
from protocol.errors import InsufficientStorage, PayloadTooLarge, Unavailable
from protocol.jobs.job import Counts, new_job_id
from protocol.jobs.source import DataFormat, DataPlace, JobSource, Position, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Claim, JobChange, Limits, NewItem, NewJob, Outcome, UnusableStore
from protocol.jobs.webhook import DeliveryRoom, Webhook
from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.actors.jobs.stores import RedisStores, finish_one

pytestmark = [needs_redis_server, pytest.mark.slow]

NOW = 1_800_000_000.0
LIMITS = Limits(max_interruptions=3)
ROOM = DeliveryRoom(total=64, per_host=4, per_owner=32)
SOURCE = JobSource("m", DataPlace("/in", DataFormat.NPZ), DataPlace("/out", DataFormat.JSON_LINES))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@asynccontextmanager
async def opened(stores: RedisStores, limits: Limits = LIMITS) -> AsyncIterator[RedisStore]:
    store = stores.make(limits)
    with trio.fail_after(60):
        await store.open(NOW)
        try:
            yield store
        finally:
            with trio.CancelScope(shield=True):
                await store.close()


def new(*requests: bytes, webhook: Webhook | None = None) -> NewJob:
    items = [NewItem("m", [request]) for request in requests]
    return NewJob(new_job_id(NOW), "ann", items, NOW + 100, model="m", webhook=webhook)


def outcome(claim: Claim, state: JobState = JobState.SUCCEEDED, result: bytes = b"r") -> Outcome:
    return Outcome(claim.job_id, claim.index, claim.claim, state, [result] if state is JobState.SUCCEEDED else ())


async def heard(store: RedisStore, job_id: str) -> JobChange:
    """What other servers have done with a job, once it is told."""
    while True:
        for change in await store.changes():
            if change.job_id == job_id:
                return change


async def test_one_of_two_servers_has_an_item_and_both_see_what_becomes_of_it(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as one, opened(stores) as other:
        job, _ = await one.add(new(b"a", b"b", b"c"), NOW)
        assert await other.find("ann", job.id) == job
        mine = await one.claim({"m": 2}, 1, NOW)
        theirs = await other.claim({"m": 2}, 1, NOW)
        assert [claim.index for claim in (*mine, *theirs)] == [0, 1, 2]
        for claim in (*theirs, *mine):
            await finish_one(other, outcome(claim), NOW)
        found = await one.find("ann", job.id)
        assert found is not None
        assert (found.state, found.counts) == (JobState.SUCCEEDED, Counts(succeeded=3))


async def test_what_happens_at_one_the_other_hears(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as one, opened(stores) as other:
        await other.changes()  # that it has begun to listen
        job, _ = await one.add(new(b"a"), NOW)
        assert (await heard(other, job.id)).has_items
        await other.claim({}, 1, NOW)
        await one.cancel("ann", job.id, NOW)
        while not (await heard(other, job.id)).is_cancelled:
            pass


async def test_a_cancel_that_was_missed_is_told_again(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as one, opened(stores) as other:
        job, _ = await one.add(new(b"a"), NOW)
        await other.claim({}, 1, NOW)
        await one.cancel("ann", job.id, NOW)
        with redis.Redis(port=server.port) as client:
            client.delete(f"{one._prefix}changes")
        other._watch._held.clear()
        while not (await heard(other, job.id)).is_cancelled:
            pass


async def test_what_an_ended_server_had_is_anothers_and_its_late_result_is_dropped(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as other:
        ended = stores.make(LIMITS)
        await ended.open(NOW)
        job, _ = await ended.add(new(b"a", b"b"), NOW)
        claims = await ended.claim({"m": 2}, 1, NOW)
        assert await other.claim({"m": 2}, 1, NOW) == []
        await stores.kill(ended)
        await stores.recover(other)
        found = await other.find("ann", job.id)
        assert found is not None
        assert (found.state, found.counts.queued) == (JobState.QUEUED, 2)
        again = await other.claim({"m": 2}, 1, NOW)
        assert [(claim.index, claim.claim, claim.attempt) for claim in again] == [(0, 2, 2), (1, 2, 2)]
        assert await finish_one(other, outcome(claims[0], result=b"late"), NOW) is None
        for claim in again:
            assert await finish_one(other, outcome(claim, result=b"own"), NOW) is not None
            assert await finish_one(other, outcome(claim, result=b"twice"), NOW) is None
        assert [item.result for item in await other.items(job.id, 0, 10, results=True)] == [b"own", b"own"]


async def test_a_suspect_runs_alone_on_one_server_and_others_go_on(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as one, opened(stores) as other:
        job, _ = await one.add(new(b"a"), NOW)
        for _ in range(2):
            ended = stores.make(LIMITS)
            await ended.open(NOW)
            assert len(await ended.claim({}, 1, NOW)) == 1
            await stores.kill(ended)
            await stores.recover(one)
        await one.add(new(b"b", b"c"), NOW)
        (suspect,) = await one.claim({"m": 2}, 1, NOW)
        assert suspect.job_id == job.id
        assert await one.claim({"m": 2}, 1, NOW) == []
        assert len(await other.claim({"m": 1}, 1, NOW)) == 1
        await finish_one(one, outcome(suspect), NOW)
        assert len(await one.claim({"m": 2}, 1, NOW)) == 1


async def test_what_was_put_off_comes_when_it_is_due_and_before_what_is_new(server: RedisServer) -> None:
    async with opened(RedisStores(server.port)) as store:
        await store.add(new(b"a", b"b"), NOW)
        (claim,) = await store.claim({}, 1, NOW)
        await finish_one(store, replace(outcome(claim, JobState.QUEUED), not_before=NOW + 10), NOW)
        (new_one,) = await store.claim({"m": 1}, 1, NOW + 9)
        assert new_one.index == 1
        assert await store.claim({"m": 1}, 1, NOW + 9) == []
        await store.add(new(b"c"), NOW)
        (again,) = await store.claim({"m": 1}, 1, NOW + 10)
        assert (again.index, again.attempt) == (0, 2)


class LosesAnswers:
    """Makes the next call of a name and loses its answer."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._call = store._call
        self.name = ""
        monkeypatch.setattr(store, "_call", self.call)

    async def call(self, name: str, *arguments: Any) -> Any:
        answer = await self._call(name, *arguments)
        if name == self.name:
            self.name = ""
            raise Disconnected("the answer was lost")
        return answer


async def test_a_job_whose_answer_was_lost_is_made_once(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(RedisStores(server.port)) as store:
        LosesAnswers(store, monkeypatch).name = "add"
        _, is_made = await store.add(new(b"a"), NOW)
        assert is_made
        assert (await store.figures()).jobs[JobState.QUEUED] == 1
        assert len(await store.claim({"m": 5}, 1, NOW)) == 1


async def test_claims_whose_answer_was_lost_are_given_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(RedisStores(server.port)) as store:
        await store.add(new(b"a", b"b", b"c"), NOW)
        (known,) = await store.claim({"m": 1}, 1, NOW)
        LosesAnswers(store, monkeypatch).name = "claim"
        with pytest.raises(Unavailable, match="was lost"):
            await store.claim({"m": 2}, 1, NOW)
        again = await store.claim({"m": 5}, 1, NOW)
        assert [(claim.index, claim.attempt) for claim in again] == [(1, 1), (2, 1)]
        assert await finish_one(store, outcome(known), NOW) is not None


async def test_rows_whose_answer_was_lost_are_added_once(server: RedisServer) -> None:
    def at(row: int) -> Progress:
        return Progress(Position(row, "a", "1", row))

    stores = RedisStores(server.port)
    async with opened(stores) as store, opened(stores) as other:
        job, _ = await store.add(NewJob("job_1", "ann", (), NOW + 100, model="m", source=SOURCE), NOW)
        rows = [NewItem("m", [b"%d" % row]) for row in range(6)]
        await store.extend(job.id, rows[:3], at(3), NOW)
        await store.extend(job.id, (), Progress(), NOW)  # as it knows it that was not told of the rows
        extended = await store.extend(job.id, rows[:4], at(4), NOW)
        assert extended is not None
        assert extended.counts.queued == 4
        claims = await store.claim({"m": 10}, 1, NOW)
        assert [claim.request for claim in claims] == [b"0", b"1", b"2", b"3"]
        with pytest.raises(Unavailable, match="another server goes on with this job"):
            await other.extend(job.id, rows[4:], at(6), NOW)
        assert await other.sources() == []
        ((_, progress),) = await store.sources()
        assert progress == at(4)


async def test_a_source_goes_to_another_when_its_server_has_ended(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as other:
        ended = stores.make(LIMITS)
        await ended.open(NOW)
        job, _ = await ended.add(NewJob("job_1", "ann", (), NOW + 100, model="m", source=SOURCE), NOW)
        await stores.kill(ended)
        await stores.recover(other)
        ((found, progress),) = await other.sources()
        assert (found.id, progress) == (job.id, Progress())
        closed = await other.close_source(job.id, NOW)
        assert closed is not None
        assert closed.state is JobState.SUCCEEDED


async def test_deliveries_of_an_ended_server_are_due_at_once(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as other:
        ended = stores.make(LIMITS)
        await ended.open(NOW)
        job, _ = await ended.add(new(b"a", webhook=Webhook("https://a/", "https://a")), NOW)
        (claim,) = await ended.claim({}, 1, NOW)
        await finish_one(ended, outcome(claim), NOW)
        (delivery,) = await ended.claim_deliveries(ROOM, NOW, NOW + 60)
        assert await other.claim_deliveries(ROOM, NOW, NOW + 60) == []
        await stores.kill(ended)
        await stores.recover(other)
        (again,) = await other.claim_deliveries(ROOM, NOW, NOW + 60)
        assert (again.id, again.job.id, again.attempt) == (delivery.id, job.id, 2)
        await other.settle_delivery(again, None)
        assert await other.claim_deliveries(ROOM, NOW + 100, NOW + 160) == []


async def test_many_items_and_large_ones(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(RedisStores(server.port)) as store:
        job, _ = await store.add(new(*[b"x"] * 10_000), NOW)
        assert job.counts.queued == 10_000
        cancelled = await store.cancel("ann", job.id, NOW)
        assert cancelled is not None
        assert cancelled.counts.cancelled == 10_000
        assert await store.claim({"m": 5}, 1, NOW) == []
        large = bytes(5 << 20)
        job, _ = await store.add(new(large), NOW)
        (claim,) = await store.claim({}, 1, NOW)
        assert (claim.request, claim.byte_size) == (b"", len(large))
        assert await store.request(claim) == large
        await finish_one(store, outcome(claim, result=large), NOW)
        (item,) = await store.items(job.id, 0, 1, results=True)
        assert item.result == large
        monkeypatch.setattr(module, "LARGEST", 1 << 20)
        with pytest.raises(PayloadTooLarge, match="at most 469762048 at once, and 1048576 of each"):
            await store.add(new(large), NOW)
        job, _ = await store.add(new(b"a"), NOW)
        (claim,) = await store.claim({}, 1, NOW)
        failed = await finish_one(store, outcome(claim, result=large), NOW)
        assert failed is not None
        assert failed.error is not None
        assert (failed.state, failed.error.kind) == (JobState.FAILED, "INSUFFICIENT_STORAGE")


async def test_the_same_secret_for_all_servers(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as one, opened(stores) as other:
        secret = await one.link_secret()
        assert len(secret) >= 32
        assert await other.link_secret() == secret
    async with opened(RedisStores(server.port)) as apart:
        assert await apart.link_secret() != secret


async def test_a_full_memory_refuses_new_jobs_only(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as running:
        async with opened(RedisStores(running.port)) as store:
            job, _ = await store.add(new(b"a", b"b"), NOW)
            running.configure("maxmemory", "1mb")
            with pytest.raises(InsufficientStorage, match="has no memory left"):
                await store.add(new(b"c"), NOW)
            claims = await store.claim({"m": 2}, 1, NOW)
            refusals: list[InsufficientStorage] = []

            async def add() -> None:
                with pytest.raises(InsufficientStorage, match="has no memory left") as caught:
                    await store.add(new(b"c"), NOW)
                refusals.append(caught.value)

            async with trio.open_nursery() as nursery:  # they go together
                for claim in claims:
                    nursery.start_soon(store.finish, [outcome(claim)], NOW)
                    nursery.start_soon(add)
            assert len(refusals) == 2
            ended = await store.find("ann", job.id)
            assert ended is not None
            assert ended.state is JobState.SUCCEEDED
            assert await store.remove("ann", job.id)
            running.configure("maxmemory", "0")
            await store.add(new(b"c"), NOW)


async def test_an_outage_is_told_and_ends_by_itself(tmp_path: Path) -> None:
    with RedisServer(tmp_path, is_lasting=True) as running:
        async with opened(RedisStores(running.port)) as store:
            job, _ = await store.add(new(b"a", b"b"), NOW)
            (claim,) = await store.claim({}, 1, NOW)
            running.stop()
            with pytest.raises(Unavailable, match="cannot be reached"):
                await store.add(new(b"c"), NOW)
            with pytest.raises(Unavailable, match="cannot be reached"):
                await store.claim({}, 1, NOW)
            running.start()
            done = await finish_one(store, outcome(claim), NOW)  # on a connection of its own time, and by a script anew
            assert done is not None
            assert (done.id, done.counts.succeeded) == (job.id, 1)
            assert len(await store.claim({}, 1, NOW)) == 1


async def test_a_redis_that_would_lose_jobs_is_refused(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as running:
        running.configure("maxmemory-policy", "allkeys-lru")
        store = RedisStores(running.port).make(LIMITS)
        with pytest.raises(UnusableStore, match=r"drops keys when its memory is full .*: set it to noeviction"):
            await store.open(NOW)
        await store.close()
        running.stop()
        store = RedisStores(running.port).make(LIMITS)
        with pytest.raises(
            UnusableStore, match="cannot be opened: the Redis server of the job store cannot be reached"
        ):
            await store.open(NOW)
        await store.close()
