"""Jobs over HTTP, on a real server: made in every way, waited for, followed, cancelled; each is its owner's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.job_client import Answer, JobClient, slow_request
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import ServerProcess, eventually

KEYS = """
[keys.ann]
key = "ann-0123456789abcdef"
allow = ["all"]
[keys.bob]
key = "bob-0123456789abcdef"
allow = ["all"]
[keys.eve]
key = "eve-0123456789abcdef"
allow = ["all"]
quota = "small"
[quotas.small]
requests = { limit = 10, seconds = 3600, burst = 10 }
"""
EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
HEADER_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("jobs")
    copy_python_model("slow", folder / "models")
    add_add_sub(folder / "models" / "add_sub", versions=(1, 2))
    shutil.copytree(EXAMPLES / "decoupled_tokens", folder / "models" / "decoupled_tokens")
    (folder / "keys.toml").write_text(KEYS)
    flags = (
        f"--jobs-store={folder / 'jobs'}",
        f"--auth-keys-file={folder / 'keys.toml'}",
        "--jobs-max-bytes=30000000",
    )
    with ServerProcess(*flags, repository=folder / "models") as server:
        yield server.addresses["http"]


@pytest.fixture
def ann(address: str) -> JobClient:
    return JobClient(address, "ann-0123456789abcdef")


@pytest.fixture
def bob(address: str) -> JobClient:
    return JobClient(address, "bob-0123456789abcdef")


def body(value: float = 1.0, rows: int = 1, **more: Any) -> dict[str, Any]:
    tensor = {"datatype": "FP32", "shape": [rows, 16], "data": [value] * 16 * rows}
    return {"inputs": [{"name": f"INPUT{i}", **tensor} for i in (0, 1)], **more}


def sum_of(answer: Answer) -> list[float]:
    assert answer.status == 200, answer.body
    (found,) = [output["data"] for output in answer.json["outputs"] if output["name"] == "OUTPUT0"]
    return [float(value) for value in found]


def test_a_job_gives_what_inference_gives(ann: JobClient) -> None:
    made = ann.call("POST", "/v2/models/add_sub/versions/1/jobs?timeout=60", body(2.0, id="mine"))
    assert (made.status, made.headers["Retry-After"]) == (202, "1")
    job = ann.ended(made.json["id"])
    assert (job["state"], job["counts"]["total"], job["model_name"]) == ("succeeded", 1, "add_sub")
    assert job["expires_at"] - job["created_at"] == pytest.approx(60, abs=0.1)
    result = ann.call("GET", f"{made.headers['Location']}/result")
    assert sum_of(result) == [4.0] * 16
    direct = ann.call("POST", "/v2/models/add_sub/versions/1/infer", body(2.0, id="mine"))
    assert result.json == direct.json


def test_binary_tensors_come_and_go_as_they_do_with_inference(ann: JobClient) -> None:
    array = np.arange(256, dtype=np.float32).reshape(16, 16)
    inputs = [
        {"name": f"INPUT{i}", "datatype": "FP32", "shape": [8, 16], "parameters": {"binary_data_size": 512}}
        for i in (0, 1)
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    tensors = array[:8].tobytes() + array[8:].tobytes()
    made = ann.call("POST", "/v2/models/add_sub/jobs", head + tensors, **{HEADER_LENGTH: str(len(head))})
    assert made.status == 202, made.body
    ann.ended(made.json["id"])
    result = ann.call("GET", f"/v2/jobs/{made.json['id']}/result")
    length = int(result.headers[HEADER_LENGTH])
    outputs = json.loads(result.body[:length])["outputs"]
    assert {output["name"] for output in outputs} == {"OUTPUT0", "OUTPUT1"}
    assert len(result.body) - length == 1024


def test_a_request_becomes_a_job_where_its_client_prefers_that(ann: JobClient) -> None:
    inference = slow_request(7, 0.5)
    quick = ann.call("POST", "/v2/models/slow/infer", slow_request(6, 0.0), Prefer="respond-async, wait=30")
    assert (quick.status, quick.headers["Preference-Applied"]) == (200, "respond-async, wait=30")
    assert quick.json["outputs"][0]["data"] == [6]
    assert ann.job(quick.headers["Location"].rpartition("/")[2])["state"] == "succeeded"
    made = ann.call("POST", "/v2/models/slow/infer", inference, Prefer="respond-async")
    assert (made.status, made.headers["Preference-Applied"], made.headers["Retry-After"]) == (202, "respond-async", "1")
    waited = ann.call("GET", made.headers["Location"], Prefer="wait=30")
    assert (waited.json["state"], waited.headers["Preference-Applied"]) == ("succeeded", "wait=30")
    assert ann.call("GET", f"{made.headers['Location']}/result").json["outputs"][0]["data"] == [7]
    assert ann.call("POST", "/v2/models/slow/infer", slow_request(8, 0.0), Prefer="return=minimal").status == 200


def test_generate_becomes_a_job_too(ann: JobClient) -> None:
    generation = {"SECONDS": 0.0, "VALUE": 5}
    direct = ann.call("POST", "/v2/models/slow/generate", generation)
    assert direct.json["VALUE"] == 5
    deferred = ann.call("POST", "/v2/models/slow/generate", generation, Prefer="respond-async, wait=30")
    assert (deferred.status, deferred.json) == (200, direct.json)
    made = ann.call("POST", "/v2/models/slow/generate", generation, Prefer="respond-async")
    assert made.status == 202
    ann.ended(made.json["id"])
    assert ann.call("GET", f"{made.headers['Location']}/result").json == direct.json


def test_a_list_has_a_line_for_each_request(ann: JobClient) -> None:
    wrong = slow_request(1, 0.0)
    wrong["inputs"][1]["datatype"] = "FP32"
    requests = [slow_request(0, 0.0), wrong, {"model_name": "add_sub", "model_version": "2", **body(1.0)}]
    made = ann.call("POST", "/v2/jobs", {"requests": requests, "metadata": {"batch": "nightly"}, "timeout": 100})
    assert made.status == 202, made.body
    job = ann.ended(made.json["id"])
    assert (job["state"], job["metadata"], "model_name" in job) == ("succeeded", {"batch": "nightly"}, False)
    assert (job["counts"]["succeeded"], job["counts"]["failed"]) == (2, 1)
    assert job["error"]["kind"] == "INVALID_ARG"
    result = ann.call("GET", f"/v2/jobs/{job['id']}/result")
    assert result.headers["Content-Type"] == "application/x-ndjson"
    first, second, third = result.lines
    assert (first["custom_id"], first["response"]["outputs"][0]["data"]) == ("value 0", [0])
    assert (second["state"], second["error"]["kind"]) == ("failed", "INVALID_ARG")
    assert third["response"]["model_version"] == "2"
    assert sum_of(ann.call("GET", f"/v2/jobs/{job['id']}/result?item=2")) == [2.0] * 16
    assert ann.call("GET", f"/v2/jobs/{job['id']}/result?item=1").status == 400
    assert "from 0 to 2" in ann.call("GET", f"/v2/jobs/{job['id']}/result?item=3").json["error"]


def test_a_long_list_is_read_as_a_short_one(ann: JobClient) -> None:
    """In slices: one of its requests is long itself."""
    requests = [{"model_name": "add_sub", "custom_id": f"number {i}", **body(float(i), rows=1)} for i in range(300)]
    requests.append({"model_name": "add_sub", **body(0.5, rows=500)})
    made = ann.call("POST", "/v2/jobs", {"requests": requests, "metadata": {"batch": "long"}})
    assert made.status == 202, made.body
    job = ann.ended(made.json["id"])
    assert (job["metadata"], job["model_name"], job["counts"]["total"]) == ({"batch": "long"}, "add_sub", 301)
    assert ann.call("GET", f"/v2/jobs/{job['id']}/result").lines[7]["custom_id"] == "number 7"
    assert sum_of(ann.call("GET", f"/v2/jobs/{job['id']}/result?item=7")) == [14.0] * 16
    wrong = ann.call("POST", "/v2/jobs", {"requests": [*requests, {"model_name": "add_sub", "inputs": 3}]})
    assert (wrong.status, wrong.json["error"][:14]) == (400, "requests[301]:")
    requests[300]["inputs"][0]["shape"] = [499, 16]
    wrong = ann.call("POST", "/v2/jobs", {"requests": requests})
    assert (wrong.status, wrong.json["error"][:14]) == (400, "requests[300]:")


def test_an_idempotency_key_makes_one_job_of_repeated_requests(ann: JobClient, bob: JobClient) -> None:
    key = {"Idempotency_Key": "a key of mine"}
    first = ann.call("POST", "/v2/models/add_sub/jobs", body(), **key)
    again = ann.call("POST", "/v2/models/add_sub/jobs", body(), **key)
    assert (first.status, first.json["id"]) == (202, again.json["id"])
    other = ann.call("POST", "/v2/models/add_sub/jobs", body(2.0), **key)
    assert other.status == 422
    assert "'a key of mine' was used for another request" in other.json["error"]
    assert ann.call("POST", "/v2/models/add_sub/infer", body(), Prefer="respond-async", **key).status in (200, 202, 422)
    assert bob.call("POST", "/v2/models/add_sub/jobs", body(2.0), **key).status == 202
    assert ann.call("POST", "/v2/models/add_sub/jobs", body(), Idempotency_Key="x" * 256).status == 400


def test_a_job_is_its_owners(ann: JobClient, bob: JobClient, address: str) -> None:
    job_id = ann.submit([slow_request(1, 0.0)])
    ann.ended(job_id)
    unknown = f"there is no job '{job_id}'"
    for method, path in (
        ("GET", ""),
        ("GET", "/result"),
        ("GET", "/events"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        answer = bob.call(method, f"/v2/jobs/{job_id}{path}")
        assert (answer.status, answer.json["error"]) == (404, unknown)
    assert job_id not in {job["id"] for job in bob.call("GET", "/v2/jobs?limit=100").json["jobs"]}
    assert JobClient(address).call("GET", f"/v2/jobs/{job_id}").status == 401
    assert ann.job(job_id)["state"] == "succeeded"


def test_a_job_is_cancelled_and_removed(ann: JobClient) -> None:
    job_id = ann.submit([slow_request(value, 3.0) for value in range(5)])
    assert eventually(lambda: ann.job(job_id)["counts"]["running"] > 0)
    assert ann.call("GET", f"/v2/jobs/{job_id}/result").status == 409
    assert ann.call("POST", f"/v2/jobs/{job_id}/cancel").json["state"] in ("cancelling", "cancelled")
    job = ann.ended(job_id)
    assert (job["state"], job["counts"]["cancelled"]) == ("cancelled", 5)
    assert job["ended_at"] - job["created_at"] < 6
    assert [line["state"] for line in ann.call("GET", f"/v2/jobs/{job_id}/result").lines] == ["cancelled"] * 5
    assert ann.call("GET", f"/v2/jobs/{job_id}/result?item=0").status == 409
    assert ann.call("DELETE", f"/v2/jobs/{job_id}").json["deleted"]
    assert ann.call("GET", f"/v2/jobs/{job_id}").status == 404


def test_a_job_expires(ann: JobClient) -> None:
    made = ann.call("POST", "/v2/models/slow/jobs?timeout=1", slow_request(1, 3.0))
    job = ann.ended(made.json["id"])
    assert (job["state"], job["counts"]["expired"]) == ("expired", 1)
    assert ann.call("GET", f"/v2/jobs/{job['id']}/result").status == 504


def events_of(client: JobClient, job_id: str) -> list[tuple[str, Any]]:
    """All until its end, which is awaited, by name."""
    text = client.call("GET", f"/v2/jobs/{job_id}/events").body.decode()
    events = [part.split("\n") for part in text.split("\n\n")[:-1] if not part.startswith(":")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in events]


def test_the_responses_of_a_decoupled_model_are_lines_and_come_as_events(ann: JobClient) -> None:
    inputs = [
        {"name": "PROMPT", "datatype": "BYTES", "shape": [1], "data": ["the"]},
        {"name": "MAX_TOKENS", "datatype": "INT32", "shape": [1], "data": [15]},
    ]
    made = ann.call("POST", "/v2/models/decoupled_tokens/jobs", {"inputs": inputs})
    assert made.status == 202, made.body
    named = events_of(ann, made.json["id"])
    partial = [data for name, data in named if name == "partial"]
    assert partial
    assert partial[-1]["index"] == 0
    assert named[-1][1]["state"] == "succeeded"
    result = ann.call("GET", f"/v2/jobs/{made.json['id']}/result")
    assert result.headers["Content-Type"] == "application/x-ndjson"
    assert len(result.lines) == 15
    assert result.lines[-1]["outputs"][1]["data"] == [14]
    assert partial[-1]["response"] in result.lines


def test_a_job_is_followed(ann: JobClient) -> None:
    job_id = ann.submit([slow_request(value, 0.3) for value in range(4)])
    named = events_of(ann, job_id)
    assert named[0][0] == "state"
    assert named[-1][1]["state"] == "succeeded"
    progress = [data["succeeded"] for name, data in named if name == "progress"]
    assert progress
    assert progress == sorted(progress)


def test_each_request_of_a_list_counts_for_the_quota(address: str) -> None:
    eve = JobClient(address, "eve-0123456789abcdef")
    job_id = eve.submit([slow_request(value, 0.0) for value in range(10)])
    assert eve.ended(job_id)["counts"]["succeeded"] == 10
    refused = eve.call("POST", "/v2/models/slow/jobs", slow_request(1, 0.0))
    assert (refused.status, "'small'" in refused.json["error"]) == (429, True)
    assert eve.call("POST", "/v2/models/slow/infer", slow_request(1, 0.0)).status == 429


def test_pages_of_jobs(bob: JobClient) -> None:
    ids = [bob.submit([slow_request(1, 0.0)]) for _ in range(3)]
    for job_id in ids:
        bob.ended(job_id)
    first = bob.call("GET", "/v2/jobs?limit=2&state=succeeded&model=slow").json
    assert [job["id"] for job in first["jobs"]] == sorted(ids, reverse=True)[:2]
    rest = bob.call("GET", f"/v2/jobs?limit=100&state=succeeded&model=slow&after={first['next']}").json
    assert [job["id"] for job in rest["jobs"]] == [min(ids)]
    assert "next" not in rest


@pytest.mark.parametrize(
    ("path", "content", "status", "text"),
    [
        ("/v2/models/nope/jobs", body(), 404, "'nope' is not found"),
        ("/v2/models/add_sub/jobs", b"{", 400, "failed to parse the request JSON"),
        ("/v2/models/add_sub/jobs?timeout=0", body(), 400, "'timeout': expected a whole number of seconds"),
        ("/v2/models/add_sub/jobs", body(parameters={"sequence_id": 3}), 400, "takes no part in a sequence"),
        ("/v2/jobs", {"requests": []}, 400, "requests"),
        ("/v2/jobs", {"requests": [body()]}, 400, "requests[0]: Unable to parse 'model_name'"),
        ("/v2/jobs", {"requests": [{"model_name": "nope", **body()}]}, 404, "'nope' is not found"),
        ("/v2/jobs", {"requests": [{"model_name": "slow", "model_version": "x", **body()}]}, 400, "expected digits"),
        ("/v2/jobs", {"requests": [{"model_name": "slow", "inputs": 3}]}, 400, "requests[0]: "),
        ("/v2/jobs", {"requests": [slow_request(1, 0)], "metadata": {"a": 1}}, 400, "metadata"),
        ("/v2/jobs", {"requests": [slow_request(1, 0)], "timeout": -1}, 400, "timeout"),
    ],
)
def test_what_is_wrong_is_said_at_once(ann: JobClient, path: str, content: object, status: int, text: str) -> None:
    answer = ann.call("POST", path, content)
    assert answer.status == status, answer.body
    assert text in answer.json["error"]


@pytest.mark.parametrize("query", ["state=odd", "limit=0", "limit=101", "limit=x", "limit=" + "9" * 5000])
def test_a_query_that_is_wrong_is_refused(ann: JobClient, query: str) -> None:
    assert ann.call("GET", f"/v2/jobs?{query}").status == 400


def test_what_has_no_room_is_refused_with_507(ann: JobClient) -> None:
    rows = 200_000
    inputs = [
        {"name": f"INPUT{i}", "datatype": "FP32", "shape": [rows, 16], "parameters": {"binary_data_size": 64 * rows}}
        for i in (0, 1)
    ]
    head = json.dumps({"inputs": inputs}).encode()
    big = ann.call("POST", "/v2/models/add_sub/jobs", head + bytes(3 * 64 * rows), **{HEADER_LENGTH: str(len(head))})
    assert big.status == 400
    many = {**inputs[0], "name": "INPUT2"}
    head = json.dumps({"inputs": [*inputs, many]}).encode()
    big = ann.call("POST", "/v2/models/add_sub/jobs", head + bytes(3 * 64 * rows), **{HEADER_LENGTH: str(len(head))})
    assert (big.status, big.headers["Retry-After"]) == (507, "60")
    assert "--jobs-max-bytes" in big.json["error"]


def test_without_a_store_there_are_no_jobs(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    with ServerProcess(repository=tmp_path / "models") as server:
        client = JobClient(server.addresses["http"])
        for method, path in (("GET", "/v2/jobs"), ("POST", "/v2/models/add_sub/jobs")):
            answer = client.call(method, path, None if method == "GET" else body())
            assert answer.status == 501
            assert "--jobs-store=<folder>" in answer.json["error"]
        assert sum_of(client.call("POST", "/v2/models/add_sub/infer", body(), Prefer="respond-async")) == [2.0] * 16


def test_a_store_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    (tmp_path / "file").write_text("no folder")
    with ServerProcess(f"--jobs-store={tmp_path / 'file'}", repository=tmp_path / "models") as server:
        assert server.wait() == 1
        assert "cannot be opened" in server.log
        assert "see --jobs-store" in server.log
