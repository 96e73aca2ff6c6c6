"""The quota store in a real Redis: the answers of the one in Python, keys that expire, TLS, outages, wrong URLs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trio
import trustme

from actors.quotas.redis_store import RedisQuotaStore, make_quota_store
from actors.quotas.store import StoreAway
from protocol.quotas.leases import LEASE_SECONDS, Claim, Grant, LeasedPlaces, Leases
from protocol.quotas.meters import Rate
from protocol.quotas.shared import Push, SharedBucket, SharedMeters
from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.actors.quotas.levels import Levels, SharedLeases

real = [needs_redis_server, pytest.mark.slow]
METER = SharedBucket(Rate(1, 1.0, 1), "m", SharedMeters())
PLACES = LeasedPlaces(8, "m", Leases())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


def push(name: str, delta: float, *, base: float = 0.0, rate: float = 1e-6, most: float | None = None) -> Push:
    """Of which next to nothing flows back while a test runs."""
    return Push(METER, name, delta, base, rate, most)


def claim(name: str, held: int, need: int, want: int, limit: int = 8) -> Claim:
    return Claim(PLACES, name, held, need, want, limit)


def client(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port)


class TestReal:
    pytestmark = real

    @pytest.mark.parametrize("seed", range(3))
    async def test_it_counts_as_the_fake_one_does(self, server: RedisServer, seed: int) -> None:
        rng, fake = random.Random(seed), Levels()
        stores = [make_quota_store(f"redis://127.0.0.1:{server.port}?name=fuzz{seed}") for _ in range(2)]
        for _ in range(200):
            names = rng.sample(["a", "b", "c:d", "ü"], rng.randrange(1, 5))
            pushes = [
                push(
                    name,
                    rng.choice([0.0, rng.uniform(-5, 20), 1e12]),
                    base=rng.uniform(0, 5),
                    most=rng.choice([None, rng.uniform(0, 50)]),
                )
                for name in names
            ]
            found = await rng.choice(stores).exchange(pushes)
            assert found == pytest.approx([fake.add(each, 0.0) for each in pushes], abs=1e-2)
        for store in stores:
            await store.close()

    @pytest.mark.parametrize("seed", range(3))
    async def test_it_leases_as_the_fake_one_does(self, server: RedisServer, seed: int) -> None:
        rng, fake = random.Random(seed), SharedLeases()
        stores = [make_quota_store(f"redis://127.0.0.1:{server.port}?name=lease{seed}") for _ in range(3)]
        for _ in range(200):
            claims = []
            for name in rng.sample(["a", "b", "c:d", "ü"], rng.randrange(1, 5)):
                held, limit = rng.choice([0, 0, rng.randrange(9)]), rng.choice([8, 8, 20])
                need = held + rng.randrange(4)
                claims.append(claim(f"{name}{rng.random() < 0.1}", held, need, need + rng.randrange(4), limit))
            which = rng.randrange(len(stores))
            found = await stores[which].lease(claims)
            assert found == [fake.lease(which, each, 0.0) for each in claims]
        for store in stores:
            await store.close()

    async def test_a_lease_ends_by_itself(self, server: RedisServer) -> None:
        one, other = (make_quota_store(f"redis://127.0.0.1:{server.port}?name=ends") for _ in range(2))
        assert await one.lease([claim("m", 5, 5, 6)]) == [Grant(6, 0, 0, False)]
        started = trio.current_time()
        assert await other.lease([claim("m", 0, 3, 3)]) == [Grant(2, 6, 5, False)]
        with trio.fail_after(60):
            lease = 0
            while lease < 8:
                await trio.sleep(0.05)
                lease = (await other.lease([claim("m", 0, 8, 8)]))[0].lease
        assert trio.current_time() - started > LEASE_SECONDS / 2
        assert await one.lease([claim("m", 5, 5, 5)]) == [Grant(5, 8, 0, False)]  # what runs is a fact
        assert await other.lease([claim("m", 0, 0, 0)]) == [Grant(0, 5, 5, False)]
        with client(server) as looking:
            assert 0 < looking.pttl("trioton:{ends}:m") <= LEASE_SECONDS * 1000
            assert looking.hlen("trioton:{ends}:m") == 1
        for store in (one, other):
            await store.close()

    async def test_what_is_used_flows_back_by_the_clock_of_redis(self, server: RedisServer) -> None:
        store = make_quota_store(f"redis://127.0.0.1:{server.port}?name=flow")
        (level,) = await store.exchange([push("m", 1000, rate=10.0)])
        assert level == 1000
        with trio.fail_after(60):
            while level > 995:
                await trio.sleep(0.05)
                (level,) = await store.exchange([push("m", 0, rate=10.0)])
        assert level > 0
        await store.close()

    async def test_keys_expire_when_nobody_can_believe_that_some_is_used(self, server: RedisServer) -> None:
        store = make_quota_store(f"redis://127.0.0.1:{server.port}?name=old")
        await store.exchange([push("given back", 100, rate=1.0), push("short", 1, rate=1000.0)])
        assert await store.exchange([push("given back", -100, base=50, rate=1.0)]) == [0.0]
        assert await store.exchange([push("given back", 0, base=99, rate=1.0)]) == [0.0]
        with client(server) as looking:
            assert 90 < int(looking.ttl("trioton:{old}:given back")) <= 101
            assert 0 < int(looking.pttl("trioton:{old}:short")) <= 1001
            assert len(looking.keys("trioton:{old}:*")) == 2
        await store.close()

    async def test_an_outage_is_an_error_and_what_was_lost_is_seeded(self, tmp_path: Path) -> None:
        with RedisServer(tmp_path) as running:
            store = make_quota_store(f"redis://127.0.0.1:{running.port}")
            assert await store.exchange([push("m", 5)]) == [5]
            running.stop()
            with pytest.raises(StoreAway, match="ConnectionError"):
                await store.exchange([push("m", 5)])
            running.start()  # and has nothing, not even the script
            assert await store.exchange([push("m", 1, base=4)]) == [5.0]
            assert await store.exchange([push("m", 1, base=4)]) == pytest.approx([6], abs=1e-2)
            await store.close()

    async def test_a_password_and_tls(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        key, chain, ca = (tmp_path / name for name in ("key.pem", "chain.pem", "ca.pem"))
        certificate.private_key_pem.write_to_path(str(key))
        certificate.cert_chain_pems[0].write_to_path(str(chain))
        authority.cert_pem.write_to_path(str(ca))
        with RedisServer(tmp_path, certificate=(chain, key)) as running:
            good = make_quota_store(f"rediss://127.0.0.1:{running.port}?cacert={ca}")
            assert await good.exchange([push("m", 5)]) == [5]
            await good.close()
            plain = make_quota_store(f"redis://127.0.0.1:{running.port}")
            wrong = make_quota_store(f"rediss://u:secret@127.0.0.1:{running.port}?cacert={ca}")
            for refused in (plain, wrong):
                with pytest.raises(StoreAway) as caught:
                    await refused.exchange([push("m", 5)])
                assert "secret" not in str(caught.value)
                await refused.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://", "the place of the quota store in Redis has no host, or too much; expected redis://"),
        ("redis://a:secret@h?colour=red", "the quota store in Redis has no setting 'colour'"),
        ("redis://h?name={a}", "'name' of the quota store in Redis: expected letters, digits"),
        ("rediss://h:port", "is no URL"),
    ],
)
def test_wrong_urls(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        make_quota_store(url)
    assert "secret" not in str(caught.value)


def test_servers_of_one_name_share() -> None:
    store = make_quota_store("rediss://h/3?name=blue")
    assert isinstance(store, RedisQuotaStore)
    assert store._prefix == "trioton:{blue}:"
