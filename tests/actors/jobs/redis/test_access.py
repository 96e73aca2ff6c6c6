"""The Redis job store with a password and over TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trustme

from actors.jobs.registry import make_store
from actors.redis_client import PASSWORD_VARIABLE
from protocol.jobs.store import JobStore, Limits, UnusableStore
from tests.actors.cache.redis_server import RedisServer, needs_redis_server

pytestmark = [needs_redis_server, pytest.mark.slow]


async def _use(store: JobStore) -> None:
    with trio.fail_after(60):
        await store.open(1.0)
        try:
            assert len(await store.link_secret()) >= 32
        finally:
            await store.close()


async def test_a_password_of_the_place_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(tmp_path) as server:
        server.configure("requirepass", "s3cr@t")
        await _use(make_store(f"redis://:s3cr%40t@127.0.0.1:{server.port}", Limits()))
        monkeypatch.setenv(PASSWORD_VARIABLE, "s3cr@t")
        await _use(make_store(f"redis://127.0.0.1:{server.port}", Limits()))
        store = make_store(f"redis://:wr0ng@127.0.0.1:{server.port}", Limits())
        with pytest.raises(UnusableStore, match="cannot be opened") as caught:
            await store.open(1.0)
        await store.close()
        assert "wr0ng" not in str(caught.value)


async def test_over_tls_the_server_must_be_who_it_says(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    certificate.private_key_pem.write_to_path(str(key))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(chain), append=True)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stranger.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with RedisServer(tmp_path, certificate=(chain, key)) as server:
        place = f"rediss://127.0.0.1:{server.port}"
        await _use(make_store(f"{place}?cacert={tmp_path / 'ca.pem'}", Limits()))
        for refused in (f"{place}?cacert={tmp_path / 'other.pem'}", f"redis://127.0.0.1:{server.port}"):
            store = make_store(refused, Limits())
            with pytest.raises(UnusableStore, match="cannot be opened: the Redis server of the job store cannot be"):
                await store.open(1.0)
            await store.close()
