"""Jobs whose rows come from files, with real servers: whole, killed, cancelled, and where nothing is allowed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.job_client import JobClient
from tests.e2e.repository import copy_python_model
from tests.e2e.server_process import ServerProcess, eventually
from tests.emulators import Store

# Each takes a start of a server.
KILLS = int(os.environ.get("TRIOTON_JOB_KILLS", "3"))
ROWS = 400


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Where jobs may read and write."""
    copy_python_model("slow", tmp_path / "models")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def serve(data: Path, *flags: str) -> ServerProcess:
    store = f"--jobs-store={data.parent / 'jobs'}"
    return ServerProcess(store, f"--jobs-allow-url={data}", *flags, repository=data.parent / "models")


def write_rows(path: Path, rows: int, seconds: float = 0.0) -> None:
    lines = [
        json.dumps({"custom_id": f"value {row}", "inputs": {"SECONDS": seconds, "VALUE": row}}) for row in range(rows)
    ]
    path.write_text("\n".join(lines))


def job_of(place: Path | str, output: Path | str, **more: Any) -> dict[str, Any]:
    return {"model_name": "slow", "input": {"url": str(place), **more}, "output": {"url": str(output)}}


def submitted(client: JobClient, body: dict[str, Any]) -> str:
    answer = client.call("POST", "/v2/jobs", body)
    assert answer.status == 202, answer.body
    return str(answer.json["id"])


def see_some_succeed(client: JobClient, job_id: str) -> None:
    """Returns in mid-job."""

    def succeeded() -> int:
        return int(client.job(job_id)["counts"]["succeeded"])

    before = succeeded()
    assert eventually(lambda: succeeded() > before + 5)


def lines_of(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def values(lines: Sequence[Any]) -> list[tuple[int, str, int]]:
    return [(line["index"], line["custom_id"], line["response"]["outputs"][0]["data"][0]) for line in lines]


def test_rows_and_results_are_joined_and_poison_is_apart(data: Path) -> None:
    write_rows(data / "in.jsonl", ROWS)
    with (data / "in.jsonl").open("a") as file:
        file.write('\n{"custom_id": "bad", "inputs": {"SECONDS": 0, "VALUE": "x"}}\n{"oops\n')
    with serve(data) as server:
        client = JobClient(server.addresses["http"])
        job_id = submitted(client, job_of(data / "in.jsonl", data / "out"))
        job = client.ended(job_id)
        assert (job["state"], job["counts"]["succeeded"], job["counts"]["failed"]) == ("succeeded", ROWS, 2)
        assert job["input"] == {"url": str(data / "in.jsonl"), "format": "jsonl"}
        assert job["output"] == {"url": str(data / "out"), "format": "jsonl", "rows": ROWS + 2}
        assert job["bytes"] == 0
        assert client.call("GET", f"/v2/jobs/{job_id}/result").json == {"output": job["output"]}
    assert values(lines_of(data / "out", "results")) == [(row, f"value {row}", row) for row in range(ROWS)]
    errors = lines_of(data / "out", "errors")
    assert [(each["index"], each["error"]["kind"]) for each in errors] == [
        (ROWS, "INVALID_ARG"),
        (ROWS + 1, "INVALID_ARG"),
    ]
    assert "in.jsonl: Unable to parse 'data'" in errors[0]["error"]["message"]


@pytest.mark.timeout(600)
def test_no_row_is_lost_or_written_twice_by_ends_and_kills(data: Path) -> None:
    write_rows(data / "in.jsonl", ROWS, seconds=0.01)
    flag = f"--jobs-max-interruptions={KILLS + 1}"
    job_id = ""
    for number in range(KILLS):
        with serve(data, flag) as server:
            client = JobClient(server.addresses["http"])
            job_id = job_id or submitted(client, job_of(data / "in.jsonl", data / "out"))
            see_some_succeed(client, job_id)
            server.signal(signal.SIGKILL if number else signal.SIGTERM)
            assert (server.wait() == 0) is (number == 0)
    with serve(data, flag) as server:
        job = JobClient(server.addresses["http"]).ended(job_id)
        assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", ROWS)
    assert values(lines_of(data / "out", "results")) == [(row, f"value {row}", row) for row in range(ROWS)]


def test_a_job_is_cancelled_at_once_and_what_is_done_is_written(data: Path) -> None:
    write_rows(data / "in.jsonl", 5_000, seconds=0.01)
    with serve(data) as server:
        client = JobClient(server.addresses["http"])
        job_id = submitted(client, job_of(data / "in.jsonl", data / "out"))
        assert eventually(lambda: client.job(job_id)["counts"]["succeeded"] > 20)
        client.call("POST", f"/v2/jobs/{job_id}/cancel")
        job = client.ended(job_id)
        assert job["state"] == "cancelled"
        counts = job["counts"]
        written = values(lines_of(data / "out", "results"))
        assert len(written) == counts["succeeded"]
        assert counts["cancelled"] > 0
        assert client.call("DELETE", f"/v2/jobs/{job_id}").status == 200


def test_arrays_of_a_file(data: Path) -> None:
    np.savez(data / "in.npz", SECONDS=np.zeros(20, np.float32), VALUE=np.arange(20))
    with serve(data) as server:
        client = JobClient(server.addresses["http"])
        body = job_of(data / "*.npz", data / "out", format="npz")
        body["output"]["format"] = "npz"
        assert client.ended(submitted(client, body))["state"] == "succeeded"
    with np.load(data / "out/results-000000000000.npz") as found:
        (name,) = set(found) - {"index", "custom_id"}
        assert found[name].reshape(-1).tolist() == found["index"].tolist() == [*range(20)]


def test_places_that_are_not_allowed(data: Path) -> None:
    write_rows(data / "in.jsonl", 3)
    (data / "link").symlink_to(data.parent / "models")
    (data.parent / "secret.jsonl").write_text("{}")
    (data / "link.jsonl").symlink_to(data.parent / "secret.jsonl")
    allowed, out = data / "in.jsonl", data / "out"
    with serve(data) as server:
        client = JobClient(server.addresses["http"])
        for place, output in (
            (data.parent / "secret.jsonl", out),
            (data / "link.jsonl", out),
            (data / "link" / "*.jsonl", out),
            (f"{data}/../secret.jsonl", out),
            (allowed, data / "link" / "out"),
            (allowed, data.parent),
            ("s3://bucket/in.jsonl", out),
            ("in.jsonl", out),
        ):
            answer = client.call("POST", "/v2/jobs", job_of(place, output, format="jsonl"))
            assert (answer.status, "--jobs-allow-url=<prefix>" in answer.json["error"]) == (403, True), place
        for change, error in (
            ({"input": {"url": "", "format": "jsonl"}}, "url"),
            ({"input": {"url": str(data)}}, "'input.format': expected one of jsonl, parquet, npz, images, got none"),
            ({"input": {"url": str(data), "format": "csv"}}, "got 'csv'"),
            ({"output": {"url": str(out), "format": "images"}}, "'output.format': expected one of jsonl, parquet, npz"),
            ({"output": {"url": str(data / "*")}}, "expected a folder, got a pattern"),
            ({"input": {"url": str(data), "format": "jsonl"}}, "which would read it: choose another folder"),
            ({"output": {}}, "url"),
            ({"timeout": -1}, "timeout"),
        ):
            answer = client.call("POST", "/v2/jobs", {**job_of(allowed, out), **change})
            assert answer.status == 400, answer.body
            assert error in answer.json["error"]
        assert client.call("POST", "/v2/jobs", {**job_of(allowed, out), "model_name": "none"}).status == 404
        # A link among the files of a folder that is allowed leads out of it: the job fails, whatever else there is.
        job = client.ended(submitted(client, job_of(data / "*.jsonl", out, format="jsonl")))
        assert (job["state"], job["error"]["kind"]) == ("failed", "FORBIDDEN")
        missing = client.ended(submitted(client, job_of(data / "none.jsonl", out)))
        assert (missing["state"], missing["error"]["kind"]) == ("failed", "NOT_FOUND")


@pytest.mark.slow
def test_rows_and_results_in_a_bucket(data: Path, store: Store) -> None:
    write_rows(data / "in.jsonl", 30)
    store.put("in/a.jsonl", (data / "in.jsonl").read_bytes())
    with serve(data, f"--jobs-allow-url={store.url}") as server:
        client = JobClient(server.addresses["http"])
        job = client.ended(submitted(client, job_of(f"{store.url}/in", f"{store.url}/out/x", format="jsonl")))
        assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", 30)
    assert store.keys("out") == ["out/x/results-000000000000.jsonl"]
