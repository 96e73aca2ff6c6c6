"""Webhooks of jobs by a real server, told to a real receiver and verified by the standard's own package."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.job_client import JobClient, slow_request
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.webhook_receiver import Receiver, listening

ANN, COMMON = (f"whsec_{base64.b64encode(letter * 32).decode()}" for letter in (b"a", b"c"))
KEYS = f"""
[keys.ann]
key = "ann-0123456789abcdef"
allow = ["all"]
webhook_secret = "{ANN}"
[keys.bob]
key = "bob-0123456789abcdef"
allow = ["all"]
"""
BODY = {
    "inputs": [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16} for name in ("INPUT0", "INPUT1")
    ]
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with listening() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("webhooks")


@pytest.fixture(scope="module")
def server(receiver: Receiver, folder: Path) -> Iterator[ServerProcess]:
    add_add_sub(folder / "models" / "add_sub", versions=(1,))
    copy_python_model("slow", folder / "models")
    (folder / "keys.toml").write_text(KEYS)
    (folder / "secret").write_text(f"{COMMON}\n")
    flags = (
        f"--jobs-store={folder / 'jobs'}",
        f"--auth-keys-file={folder / 'keys.toml'}",
        f"--jobs-webhook-secret-file={folder / 'secret'}",
        f"--jobs-webhook-allowed-hosts=127.0.0.1:{receiver.port}",
        "--jobs-webhook-allowed-hosts=*",
        f"--jobs-allow-url={folder}",
    )
    with ServerProcess(*flags, repository=folder / "models") as server:
        yield server


@pytest.fixture
def ann(server: ServerProcess) -> JobClient:
    return JobClient(server.addresses["http"], "ann-0123456789abcdef")


def test_a_job_of_a_list(ann: JobClient, receiver: Receiver) -> None:
    hook = {"url": f"{receiver.url}/list", "events": ["job.running", "job.succeeded"]}
    asked = {"requests": [slow_request(1, 0.0)], "webhook": hook, "metadata": {"a": "ä"}}
    job = ann.call("POST", "/v2/jobs", asked).json
    assert eventually(lambda: len(receiver.verified("/list", ANN)) == 2)
    running, succeeded = sorted(receiver.verified("/list", ANN), key=lambda message: str(message["type"]))
    assert [running["type"], succeeded["type"]] == ["job.running", "job.succeeded"]
    assert succeeded["data"] == ann.job(job["id"])
    assert succeeded["data"]["metadata"] == {"a": "ä"}


def test_a_job_of_one_request_and_a_request_that_is_deferred(server: ServerProcess, receiver: Receiver) -> None:
    bob = JobClient(server.addresses["http"], "bob-0123456789abcdef")
    query = f"?webhook={receiver.url}/one"
    made = bob.call("POST", f"/v2/models/add_sub/jobs{query}&webhook_events=job.succeeded", BODY).json
    deferred = bob.call("POST", f"/v2/models/add_sub/infer{query}", BODY, prefer="respond-async").json
    assert eventually(lambda: len(receiver.verified("/one", COMMON)) == 2)
    told = {message["data"]["id"] for message in receiver.verified("/one", COMMON)}
    assert told == {made["id"], deferred["id"]}


def test_a_job_of_rows_from_files(ann: JobClient, receiver: Receiver, folder: Path) -> None:
    (folder / "in.jsonl").write_text(f"{json.dumps(BODY)}\n" * 3)
    places = {"input": {"url": str(folder / "in.jsonl")}, "output": {"url": str(folder / "out")}}
    job = ann.call("POST", "/v2/jobs", {"model_name": "add_sub", **places, "webhook": {"url": f"{receiver.url}/rows"}})
    assert job.status == 202, job.body
    assert eventually(lambda: len(receiver.verified("/rows", ANN)) == 1)
    (message,) = receiver.verified("/rows", ANN)
    assert (message["type"], message["data"]["output"]["rows"]) == ("job.succeeded", 3)


def test_a_failure_and_a_redirect_are_tried_again(server: ServerProcess, ann: JobClient, receiver: Receiver) -> None:
    receiver.statuses = [302]
    ann.call("POST", f"/v2/models/add_sub/jobs?webhook={receiver.url}/again", BODY)
    assert eventually(lambda: len(receiver.verified("/again", ANN)) == 2)
    first, second = [headers for to, headers, _ in receiver.received if to == "/again"]
    assert first["webhook-id"] == second["webhook-id"]
    assert first["webhook-timestamp"] < second["webhook-timestamp"]
    assert not receiver.verified("/followed", ANN)
    metrics = JobClient(server.addresses["metrics"], "ann-0123456789abcdef").call("GET", "/metrics").body.decode()
    assert "trioton_job_webhook_failures_total" in metrics
    assert 'trioton_job_webhooks_total{outcome="delivered"}' in metrics


@pytest.mark.parametrize(
    ("url", "events", "reason"),
    [
        ("http://127.0.0.1:1/", None, "is none of the hosts that this server asks (--jobs-webhook-allowed-hosts)"),
        ("http://example.com/", None, "expected an https URL"),
        ("file:///etc/passwd", None, "expected an http or https URL"),
        ("https://example.com/", ["job.queued"], "expected events out of job.running, job.succeeded"),
        ("https://example.com/", [], "expected events out of job.running, job.succeeded"),
    ],
)
def test_webhooks_that_are_refused(ann: JobClient, url: str, events: list[str] | None, reason: str) -> None:
    hook = {"url": url, "events": events}
    answer = ann.call("POST", "/v2/jobs", {"requests": [slow_request(1, 0.0)], "webhook": hook})
    assert answer.status == 400
    assert reason in answer.json["error"]


def test_an_address_of_the_machine_is_never_asked(server: ServerProcess, ann: JobClient, receiver: Receiver) -> None:
    """Which a name may lead to; it is judged when it is asked."""
    answer = ann.call("POST", "/v2/models/add_sub/jobs?webhook=https://localhost/metadata", BODY)
    assert answer.status == 202
    server.wait_for_line(r"localhost.*has no public address")


def test_the_same_key_with_another_webhook_is_another_request(ann: JobClient, receiver: Receiver) -> None:
    path, key = f"/v2/models/add_sub/jobs?webhook={receiver.url}", {"idempotency_key": "k"}
    first = ann.call("POST", f"{path}/a", BODY, **key)
    assert ann.call("POST", f"{path}/a", BODY, **key).json["id"] == first.json["id"]
    assert ann.call("POST", f"{path}/b", BODY, **key).status == 422


def test_a_server_that_is_killed_tells_afterwards(tmp_path: Path) -> None:
    """The receiver is away when the job ends, and the server is killed before it is back."""
    with listening() as gone:
        pass
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    (tmp_path / "secret").write_text(f"{COMMON}\n")
    flags = (
        f"--jobs-store={tmp_path / 'jobs'}",
        f"--jobs-webhook-secret-file={tmp_path / 'secret'}",
        f"--jobs-webhook-url={gone.url}/own",
        "--jobs-webhook-cloudevents",
    )
    with ServerProcess(*flags, repository=tmp_path / "models") as server:
        job = JobClient(server.addresses["http"]).call("POST", "/v2/models/add_sub/jobs", BODY).json
        server.wait_for_line(r"webhook '.*failed \(attempt 1\)")
        server.signal(signal.SIGKILL)
        server.wait()
    with listening(gone.port) as back, ServerProcess(*flags, repository=tmp_path / "models"):
        assert eventually(lambda: len(back.received) == 1)
        (message,) = back.verified("/own", COMMON)
    assert (message["specversion"], message["type"], message["subject"]) == ("1.0", "job.succeeded", job["id"])


def test_a_server_with_wrong_secrets_does_not_start(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    (tmp_path / "secret").write_text("whsec_short")
    flags = (
        f"--jobs-store={tmp_path / 'jobs'}",
        f"--jobs-webhook-secret-file={tmp_path / 'secret'}",
        "--jobs-webhook-allowed-hosts=*",
    )
    with ServerProcess(*flags, repository=tmp_path / "models") as server:
        assert server.wait() != 0
        assert "see --jobs-webhook-secret-file" in server.log
