"""Quotas of two real servers with one Redis: what a key uses at one it has used at the other, and an outage stops none.
Requests at once are those of both, also where one is killed.

Times are of days, so that nothing is free again while a test runs."""

from __future__ import annotations

import signal
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_batching import metric
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
PLACES = """
[quotas.four]
concurrent_requests = 4
[keys.alice]
key = "the-key-of-alice"
allow = ["inference", "metadata"]
quota = "four"
[anonymous]
allow = ["metrics"]
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


class Runs:
    """Requests of a key that run at servers until they are let go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(16)
        self._answers: list[Future[int]] = []

    def begin(self, server: ServerProcess, count: int) -> None:
        for _ in range(count):
            file = self._folder / f"run-{len(self._answers)}"
            self._answers.append(self._pool.submit(self._infer, server, file))

    @staticmethod
    def _infer(server: ServerProcess, file: Path) -> int:
        body = {"inputs": [{"name": "FILE", "datatype": "BYTES", "shape": [1], "data": [str(file)]}]}
        url = f"http://{server.addresses['http']}/v2/models/m/infer"
        try:
            headers = {"authorization": "Bearer the-key-of-alice"}
            return httpx.post(url, json=body, headers=headers, timeout=60).status_code
        except httpx.TransportError:
            return 0  # the server was killed

    @property
    def refused(self) -> int:
        """So far."""
        return sum(answer.done() and answer.result() == 429 for answer in self._answers)

    def let_go(self) -> Counter[int]:
        """The status codes of all; 0 for those whose server was killed."""
        while not all(answer.done() for answer in self._answers):
            for file in self._folder.glob("run-*"):
                file.unlink(missing_ok=True)
            wait(self._answers, timeout=0.02)
        codes = Counter(answer.result() for answer in self._answers)
        self._answers.clear()
        return codes


def test_requests_at_once_are_those_of_both_also_when_one_is_killed(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(PLACES)
    with RedisServer(tmp_path) as redis, ExitStack() as stack:
        flags = (f"--auth-keys-file={keys}", f"--quota-store=redis://127.0.0.1:{redis.port}")
        one, other = (stack.enter_context(ServerProcess(*flags, repository=folder / "models")) for _ in range(2))
        runs = Runs(tmp_path)
        runs.begin(one, 5)
        runs.begin(other, 5)
        assert eventually(lambda: runs.refused == 6)
        assert runs.let_go() == {200: 4, 429: 6}

        def has_all(server: ServerProcess) -> bool:
            """Whether it alone runs all four now, at once."""
            runs.begin(server, 4)
            return runs.let_go() == {200: 4}

        assert eventually(lambda: has_all(one))
        runs.begin(one, 4)
        # One for each instance; the others wait there, and count, too.
        assert eventually(lambda: len(list(tmp_path.glob("run-*"))) == 2)
        assert eventually(lambda: metric(one, "trioton_key_running_requests", key="alice") == 4)
        assert Caller(other, "the-key-of-alice").infer().status_code == 429
        one.signal(signal.SIGKILL)
        assert runs.let_go() == {0: 4}
        assert eventually(lambda: has_all(other))

        redis.stop()
        assert eventually(lambda: has_all(other))
        other.wait_for_line("the quota store: .*this server counts for itself how many requests of a key run at once")
