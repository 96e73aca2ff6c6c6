"""Batches and files of the Redis job store: what several servers share of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from protocol.errors import NotFound
from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.store import Change
from protocol.jobs.store import Limits
from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.actors.jobs.batch_samples import batch_of, finished, kept
from tests.actors.jobs.redis.test_store import NOW, opened
from tests.actors.jobs.stores import RedisStores

pytestmark = [needs_redis_server, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


async def test_what_an_ended_server_was_writing_is_dropped(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as other:
        ended = stores.make(Limits())
        await ended.open(NOW)
        file = await kept(ended, b"kept")
        writer = await ended.file_writer()
        await writer.write(b"half")
        assert await other.read_file(writer.payload, 0, 10) == b"half"
        await stores.kill(ended)
        await stores.recover(other)
        with pytest.raises(NotFound):
            await other.read_file(writer.payload, 0, 10)
        assert await other.read_file(file.payload, 0, 10) == b"kept"
        with redis.Redis(port=server.port) as client:
            assert client.get(f"{other._prefix}uploading") == b"0"


async def test_batches_of_an_ended_server_go_to_another(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as other:
        ended = stores.make(Limits())
        await ended.open(NOW)
        batch, _ = await ended.add_batch(batch_of(await kept(ended, b"x")))
        assert await other.unended_batches() == []
        assert await other.find_batch("ann", batch.id) == batch
        await stores.kill(ended)
        await stores.recover(other)
        assert await other.unended_batches() == [batch]
        await finished(other, batch, b"out")
        assert await other.unended_batches() == []


async def test_two_changes_at_once_are_made_one_after_the_other(server: RedisServer) -> None:
    stores = RedisStores(server.port)
    async with opened(stores) as one, opened(stores) as other:
        batch, _ = await one.add_batch(batch_of(await kept(one, b"x")))
        seen: list[str] = []

        def model(found: Batch) -> Batch:
            seen.append(found.endpoint)
            return replace(found, model="mine")

        async def changed_between(change: Change) -> Batch | None:
            """Another server is quicker."""
            again = one._again

            async def slow(name: str, *arguments: object) -> object:
                if name == "change_batch" and len(seen) == 1:
                    await other.change_batch(batch.id, lambda found: replace(found, endpoint="/other"))
                return await again(name, *arguments)  # type: ignore[arg-type]

            one._again = slow  # type: ignore[method-assign]
            return await one.change_batch(batch.id, change)

        found = await changed_between(model)
        assert found is not None
        assert (found.model, found.endpoint, seen) == ("mine", "/other", [batch.endpoint, "/other"])
        assert await other.find_batch("ann", batch.id) == found
