"""Jobs through the ends of real servers: killed in mid-job, and stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.job_client import JobClient, slow_request
from tests.e2e.repository import copy_python_model
from tests.e2e.server_process import ServerProcess, eventually

# Each takes a start of a server.
KILLS = int(os.environ.get("TRIOTON_JOB_KILLS", "3"))
ITEMS = 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy_python_model("slow", tmp_path / "models")
    return tmp_path / "models"


def serve(repository: Path, *flags: str) -> ServerProcess:
    return ServerProcess(f"--jobs-store={repository.parent / 'jobs'}", *flags, repository=repository)


def _submit_and_see_some_end(client: JobClient, jobs: dict[str, range], values: range) -> None:
    """Returns in mid-job."""

    def succeeded() -> int:
        return sum(client.job(each)["counts"]["succeeded"] for each in jobs)

    before = succeeded()
    jobs[client.submit([slow_request(value, 0.02) for value in values])] = values
    assert eventually(lambda: succeeded() > before + 5)
    assert any(client.job(each)["counts"]["running"] for each in jobs)


@pytest.mark.timeout(600)
def test_no_job_is_lost_or_stuck_by_kills_and_each_result_is_there_once(repository: Path) -> None:
    jobs: dict[str, range] = {}
    for number in range(KILLS):
        with serve(repository, f"--jobs-max-interruptions={KILLS + 1}") as server:
            values = range(number * ITEMS, (number + 1) * ITEMS)
            _submit_and_see_some_end(JobClient(server.addresses["http"]), jobs, values)
            server.signal(signal.SIGKILL)
            server.wait()
    with serve(repository, f"--jobs-max-interruptions={KILLS + 1}") as server:
        client = JobClient(server.addresses["http"])
        for job_id, values in jobs.items():
            job = client.ended(job_id)
            assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", ITEMS)
            lines = client.call("GET", f"/v2/jobs/{job_id}/result").lines
            assert [line["index"] for line in lines] == list(range(ITEMS))
            assert [line["custom_id"] for line in lines] == [f"value {value}" for value in values]
            assert [line["response"]["outputs"][0]["data"] for line in lines] == [[value] for value in values]
        listed = client.call("GET", "/v2/jobs?limit=100").json["jobs"]
        assert {job["id"] for job in listed} == jobs.keys()


def test_a_server_that_is_told_to_end_gives_back_what_runs(repository: Path) -> None:
    with serve(repository) as server:
        client = JobClient(server.addresses["http"])
        long = client.submit([slow_request(value, 5.0) for value in range(3)])
        assert eventually(lambda: client.job(long)["state"] == "running")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "error" not in server.log.lower()
    with serve(repository) as server:
        client = JobClient(server.addresses["http"])
        job = client.ended(long)
        assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", 3)
