"""Jobs of several real servers with one Redis: each does what the others leave, however they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.e2e.job_client import JobClient, slow_request
from tests.e2e.repository import copy_python_model
from tests.e2e.server_process import ServerProcess, eventually

pytestmark = needs_redis_server

# Each takes a start of a server.
KILLS = int(os.environ.get("TRIOTON_JOB_KILLS", "3"))
ITEMS = 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy_python_model("slow", tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


def serve(redis_server: RedisServer, repository: Path, *flags: str) -> ServerProcess:
    """Short leases: what a server that was killed had is soon another's."""
    place = f"redis://127.0.0.1:{redis_server.port}?lease=2"
    return ServerProcess(f"--jobs-store={place}", *flags, repository=repository)


def client_of(server: ServerProcess) -> JobClient:
    return JobClient(server.addresses["http"])


def _wait_for_results(client: JobClient, job_id: str, least: int) -> None:
    assert eventually(lambda: client.job(job_id)["counts"]["succeeded"] > least)


def _assert_each_result_is_there_once(client: JobClient, job_id: str, values: range) -> None:
    job = client.ended(job_id)
    assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", len(values))
    lines = client.call("GET", f"/v2/jobs/{job_id}/result").lines
    assert [line["index"] for line in lines] == list(range(len(values)))
    assert [line["custom_id"] for line in lines] == [f"value {value}" for value in values]
    assert [line["response"]["outputs"][0]["data"] for line in lines] == [[value] for value in values]


@pytest.mark.timeout(900)
def test_no_job_is_lost_or_stuck_by_kills_and_each_result_is_there_once(
    redis_server: RedisServer, repository: Path
) -> None:
    """Two servers, of which one is killed in mid-job, again and again; the other goes on with what it had."""
    flags = (f"--jobs-max-interruptions={KILLS + 2}",)
    jobs: dict[str, range] = {}
    with ExitStack() as stack:
        other = stack.enter_context(serve(redis_server, repository, *flags))
        for number in range(KILLS):
            with serve(redis_server, repository, *flags) as victim:
                client = client_of(victim)
                values = range(number * ITEMS, (number + 1) * ITEMS)
                job_id = client.submit([slow_request(value, 0.02) for value in values])
                jobs[job_id] = values
                _wait_for_results(client, job_id, 5)
                victim.signal(signal.SIGKILL)
                victim.wait()
        client = client_of(other)
        for job_id, values in jobs.items():
            _assert_each_result_is_there_once(client, job_id, values)
        listed = client.call("GET", "/v2/jobs?limit=100").json["jobs"]
        assert {job["id"] for job in listed} == jobs.keys()


def test_what_the_only_server_had_the_next_one_goes_on_with(redis_server: RedisServer, repository: Path) -> None:
    with serve(redis_server, repository) as server:
        killed = client_of(server).submit([slow_request(value, 5.0) for value in range(2)])
        assert eventually(lambda: client_of(server).job(killed)["state"] == "running")
        server.signal(signal.SIGKILL)
        server.wait()
    with serve(redis_server, repository) as server:
        stopped = client_of(server).submit([slow_request(value, 5.0) for value in range(2)])
        assert eventually(lambda: client_of(server).job(stopped)["state"] == "running")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "error" not in server.log.lower()
    with serve(redis_server, repository) as server:
        for job_id in (killed, stopped):
            _assert_each_result_is_there_once(client_of(server), job_id, range(2))


def test_any_server_knows_follows_and_cancels_the_jobs_of_another(redis_server: RedisServer, repository: Path) -> None:
    with serve(redis_server, repository) as one, serve(redis_server, repository, "--jobs-max-in-flight=1") as other:
        here, there = client_of(one), client_of(other)
        job_id = here.submit([slow_request(value, 20.0) for value in range(4)])
        assert eventually(lambda: there.job(job_id)["state"] == "running")
        events: list[dict[str, Any]] = []
        following = threading.Thread(target=_follow, args=(other, job_id, events))
        following.start()
        assert eventually(lambda: bool(events))
        assert [job["id"] for job in there.call("GET", "/v2/jobs").json["jobs"]] == [job_id]
        answer = there.call("POST", f"/v2/jobs/{job_id}/cancel")
        assert answer.json["state"] in ("cancelling", "cancelled")
        assert there.call("GET", f"/v2/jobs/{job_id}", Prefer="wait=10").json["state"] == "cancelled"
        following.join()
        assert [event["state"] for event in events if "state" in event][-1] == "cancelled"
        assert here.call("DELETE", f"/v2/jobs/{job_id}").status < 300
        assert there.call("GET", f"/v2/jobs/{job_id}").status == 404


def _follow(server: ServerProcess, job_id: str, events: list[dict[str, Any]]) -> None:
    host, port = server.addresses["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection, connection.makefile("rb") as lines:
        connection.sendall(f"GET /v2/jobs/{job_id}/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        told = (line for line in lines if line.startswith(b"data: "))
        events.extend(json.loads(line.removeprefix(b"data: ")) for line in told)


def test_redis_goes_and_comes_again(tmp_path: Path, repository: Path) -> None:
    """New jobs are refused meanwhile, what runs goes on, and all is as it was. Redis writes a log here."""
    with RedisServer(tmp_path, is_lasting=True) as redis_server, serve(redis_server, repository) as server:
        client = client_of(server)
        job_id = client.submit([slow_request(value, 0.5) for value in range(8)])
        assert eventually(lambda: client.job(job_id)["counts"]["running"] > 0)
        redis_server.stop()
        server.wait_for_line("jobs wait until it works again")
        refused = client.call("POST", "/v2/models/slow/jobs", slow_request(1, 0.0))
        assert (refused.status, refused.headers["Retry-After"] is not None) == (503, True)
        assert "cannot be reached" in refused.json["error"]
        redis_server.start()
        _assert_each_result_is_there_once(client, job_id, range(8))
        assert client.ended(client.submit([slow_request(1, 0.0)]))["state"] == "succeeded"


def test_a_redis_without_memory_refuses_new_jobs_and_ends_what_runs(tmp_path: Path, repository: Path) -> None:
    with RedisServer(tmp_path) as redis_server, serve(redis_server, repository) as server:
        client = client_of(server)
        job_id = client.submit([slow_request(value, 0.2) for value in range(20)])
        redis_server.configure("maxmemory", "1mb")
        refused = client.call("POST", "/v2/models/slow/jobs", slow_request(1, 0.0))
        assert (refused.status, "no memory left" in refused.json["error"]) == (507, True)
        _assert_each_result_is_there_once(client, job_id, range(20))
        redis_server.configure("maxmemory", "0")
        assert client.ended(client.submit([slow_request(1, 0.0)]))["state"] == "succeeded"


def test_rows_of_files_go_on_at_another_server(redis_server: RedisServer, repository: Path, tmp_path: Path) -> None:
    rows = 300
    (tmp_path / "in.jsonl").write_text("".join(f'{{"SECONDS": [0.02], "VALUE": [{row}]}}\n' for row in range(rows)))
    flag = f"--jobs-allow-url={tmp_path}"
    with serve(redis_server, repository, flag) as other:
        with serve(redis_server, repository, flag) as victim:
            body = {
                "model_name": "slow",
                "input": {"url": str(tmp_path / "in.jsonl")},
                "output": {"url": str(tmp_path / "out")},
            }
            answer = client_of(victim).call("POST", "/v2/jobs", body)
            assert answer.status == 202, answer.body
            job_id = answer.json["id"]
            _wait_for_results(client_of(victim), job_id, 20)
            victim.signal(signal.SIGKILL)
            victim.wait()
        job = client_of(other).ended(job_id)
        assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", rows)
    lines = [line for path in sorted((tmp_path / "out").iterdir()) for line in path.read_text().splitlines()]
    written = [json.loads(line) for line in lines]
    assert [line["response"]["outputs"][0]["data"] for line in written] == [[row] for row in range(rows)]
