"""Jobs through the ends of real servers: killed in mid-job, and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from io import RawIOBase
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "jobs"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a file system of its own can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_refuses_new_jobs_and_recovers_by_itself(repository: Path, small_disk: Path) -> None:
    """Nearly full: new jobs are refused, and what runs ends. Quite full: what runs waits with its results."""
    with serve(repository) as server:
        client = JobClient(server.addresses["http"])
        nearly = client.submit([slow_request(value, 0.1) for value in range(20)])
        (small_disk / "filler").write_bytes(bytes(40 << 20))
        refused = client.call("POST", "/v2/models/slow/jobs", slow_request(1, 0.0))
        assert refused.status == 507
        assert "are kept free for the results of jobs that run" in refused.json["error"]
        assert client.ended(nearly)["counts"]["succeeded"] == 20
        (small_disk / "filler").unlink()
        quite = client.submit([slow_request(value, 0.2) for value in range(20)])
        with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
            _fill(filler)
        server.wait_for_line("jobs wait until it works again")
        assert client.call("POST", "/v2/models/slow/jobs", slow_request(1, 0.0)).status == 507
        assert "ended_at" not in client.job(quite)
        (small_disk / "filler").unlink()
        assert client.ended(quite)["counts"]["succeeded"] == 20
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def _fill(file: RawIOBase) -> None:
    """Most of it at once: what runs meanwhile must not end before the disk is full."""
    with suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
    while True:
        file.write(bytes(4096))
