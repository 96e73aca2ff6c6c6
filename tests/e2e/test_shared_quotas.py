"""Quotas of two real servers with one Redis: what a key uses at one it has used at the other, and an outage stops none.

Times are of days, so that nothing is free again while a test runs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_quotas import CONFIG, MODEL

pytestmark = needs_redis_server

KEYS = """
[quotas.ten]
requests = { limit = 10, seconds = 86400 }
[keys.alice]
key = "the-key-of-alice"
allow = ["inference", "metadata"]
quota = "ten"
[keys.bob]
key = "the-key-of-bob--"
allow = ["all"]
quota = "ten"
"""
BODY = {"inputs": [{"name": "FILE", "datatype": "BYTES", "shape": [1], "data": [""]}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared-quotas")
    (folder / "models" / "m" / "1").mkdir(parents=True)
    (folder / "models" / "m" / "1" / "model.py").write_text(MODEL)
    (folder / "models" / "m" / "config.pbtxt").write_text(CONFIG)
    (folder / "keys.toml").write_text(KEYS)
    return folder


class Caller:
    """One key at one server."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        self._server = server
        self._url = f"http://{server.addresses['http']}/v2/models/m/infer"
        self._headers = {"authorization": f"Bearer {key}"}

    def infer(self) -> httpx.Response:
        answer = httpx.post(self._url, json=BODY, headers=self._headers, timeout=60)
        assert answer.status_code in (200, 429)
        return answer

    def left(self) -> int:
        """By the answer to one more request."""
        return int(self.infer().headers["ratelimit"].split(";")[1].removeprefix("r="))

    def metric(self, name: str) -> float:
        text = httpx.get(f"http://{self._server.addresses['metrics']}/metrics", headers=self._headers).text
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def wait_for_exchanges(self) -> None:
        """Until one has begun and ended."""
        name = 'trioton_quota_exchanges_total{outcome="success"}'
        before = self.metric(name)
        assert eventually(lambda: self.metric(name) >= before + 2)


def test_two_servers_have_one_quota_also_when_redis_was_away(folder: Path, tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis, ExitStack() as stack:
        flags = (
            f"--auth-keys-file={folder / 'keys.toml'}",
            f"--quota-store=redis://127.0.0.1:{redis.port}",
            "--quota-exchange-ms=20",
        )
        one, other = (stack.enter_context(ServerProcess(*flags, repository=folder / "models")) for _ in range(2))
        here, there = Caller(one, "the-key-of-alice"), Caller(other, "the-key-of-alice")
        bob, operator = Caller(one, "the-key-of-bob--"), Caller(other, "the-key-of-bob--")
        for _ in range(7):
            assert here.infer().status_code == 200
        bob.wait_for_exchanges()
        assert there.infer().status_code == 200  # from now on it asks
        operator.wait_for_exchanges()
        assert there.left() == 1
        assert there.left() == 0
        assert int(there.infer().headers["retry-after"]) > 1000
        bob.wait_for_exchanges()
        assert here.infer().status_code == 429
        assert operator.metric("trioton_quota_store_up") == 1

        redis.stop()
        assert operator.infer().status_code == 200
        other.wait_for_line("the quota store: .*this server counts for itself")
        assert there.infer().status_code == 429  # as it was known last
        assert operator.infer().status_code == 200
        assert operator.metric("trioton_quota_store_up") == 0

        redis.start()  # with nothing
        assert operator.infer().status_code == 200
        other.wait_for_line("the quota store is there again")
        assert eventually(lambda: bob.infer().status_code == 429)
        assert eventually(lambda: operator.infer().status_code == 429)
        assert operator.metric("trioton_quota_store_up") == 1


def test_it_starts_without_redis_and_not_without_keys(folder: Path, tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    store = f"--quota-store=redis://127.0.0.1:{redis.port}"
    with ServerProcess(f"--auth-keys-file={folder / 'keys.toml'}", store, repository=folder / "models") as server:
        assert Caller(server, "the-key-of-alice").infer().status_code == 200
        server.wait_for_line("the quota store: .*this server counts for itself")
    with ServerProcess(store, repository=folder / "models") as server:
        assert server.wait() != 0
        assert "--quota-store needs --auth-keys-file" in server.log
    wrong = "--quota-store=redis://u:secret@h?colour=red"
    with ServerProcess(f"--auth-keys-file={folder / 'keys.toml'}", wrong, repository=folder / "models") as server:
        assert server.wait() == 1
        assert "has no setting 'colour'" in server.log
        assert "see --quota-store" in server.log
