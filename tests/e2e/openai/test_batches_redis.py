"""Batches of several real servers with one Redis: another goes on with those of one that was killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.e2e.openai.batch_files import begin, ended, line
from tests.e2e.openai.repository import add_python
from tests.e2e.openai.test_batches_crash import (
    CONFIG,
    LINES,
    SLOW,
    URL,
    _until_completed,
    check_whole,
    connected,
    lines,
)
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = needs_redis_server


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_python(tmp_path / "models", "slow", SLOW, CONFIG)
    return tmp_path / "models"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


def serve(redis_server: RedisServer, repository: Path) -> ServerProcess:
    return ServerProcess(f"--jobs-store=redis://127.0.0.1:{redis_server.port}?lease=2", repository=repository)


@pytest.mark.timeout(600)
def test_another_server_answers_what_a_killed_one_has_left(redis_server: RedisServer, repository: Path) -> None:
    with serve(redis_server, repository) as other, connected(other) as there:
        for _ in range(2):
            with serve(redis_server, repository) as victim, connected(victim) as here:
                batch_id = begin(here, lines(), URL).id
                _until_completed(here, batch_id, LINES // 3)
                victim.signal(signal.SIGKILL)
                victim.wait()
            check_whole(there, ended(there, batch_id))
        assert len(list(there.batches.list())) == 2
        assert len(list(there.files.list())) == 4


def test_a_batch_is_cancelled_at_another_server(redis_server: RedisServer, repository: Path) -> None:
    many = [line(f"line {number}", URL, {"model": "slow", "prompt": "p"}) for number in range(2000)]
    with (
        serve(redis_server, repository) as one,
        serve(redis_server, repository) as other,
        connected(one) as here,
        connected(other) as there,
    ):
        batch_id = begin(here, many, URL).id
        assert eventually(lambda: there.batches.retrieve(batch_id).status == "in_progress")
        there.batches.cancel(batch_id)
        assert ended(here, batch_id).status == "cancelled"
