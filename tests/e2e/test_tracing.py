"""Trace and log settings of a running server, through NVIDIA's clients, and the trace file that comes of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, status_of
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess, eventually

MODEL = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
EDGE = {
    "http": ({"HTTP_RECV_START", "HTTP_RECV_END"}, {"HTTP_SEND_START", "HTTP_SEND_END"}),
    "grpc": ({"GRPC_WAITREAD_START", "GRPC_WAITREAD_END"}, {"GRPC_SEND_START", "GRPC_SEND_END"}),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture(params=[0, 2], ids=["alone", "edges"])
def tracing(tmp_path: Path, path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server of its own that could trace, and does not yet; also with edge processes."""
    add_add_sub(tmp_path / "models" / "m", versions=(1,))
    flags = (
        *(f"--trace-config=triton,file={path}", "--trace-config=rate=1"),
        f"--edge-processes={request.param}",
    )
    with ServerProcess(*flags, repository=tmp_path / "models") as process:
        assert len(process.addresses) == 3
        yield process


@pytest.fixture(params=["http", "grpc"])
def client(tracing: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, tracing.addresses[request.param]) as made:
        yield made


def settings(client: Client, told: Any) -> dict[str, Any]:
    """Trace or log settings in HTTP's form; gRPC's has a message around each value, and a list in each of the trace's,
    from which its JSON form leaves out what is empty or false."""
    if client.protocol == "http":
        return dict(told)
    plain: dict[str, Any] = {}
    for name, value in told["settings"].items():
        texts = value.get("value", [""])
        plain[name] = texts if name == "trace_level" else texts[0]
    return plain


def entries(path: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError, ValueError):  # not there, or being written
        found: list[dict[str, Any]] = json.loads(path.read_bytes())
        return found
    return []


def test_settings_are_changed_and_traces_come(client: Client, tracing: ServerProcess, path: Path) -> None:
    """They are in the file while the server runs, and a server that is killed leaves them."""
    client.infer("m", add_sub_inputs(), request_id="untraced")
    changes = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": "1"}
    told = client.json("update_trace_settings", model_name="m", settings=changes)
    expected = {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": "1",
        "trace_count": "1",
        "log_frequency": "0",
        "trace_file": str(path),
        "trace_mode": "triton",
    }
    assert settings(client, told) == expected
    for number in (1, 2):
        client.infer("m", add_sub_inputs(), request_id=f"request {number}")
    told = client.json("get_trace_settings", model_name="m")
    assert settings(client, told) == {**expected, "trace_count": "0"}
    told = client.json("get_trace_settings")
    assert settings(client, told) == {**expected, "trace_count": "-1", "trace_level": ["OFF"]}

    assert eventually(lambda: bool(entries(path)))
    tracing.signal(signal.SIGKILL)
    tracing.wait()
    model, times, *tensors = entries(path)
    assert model == {"id": 1, "model_name": "m", "model_version": 1, "request_id": "request 1"}
    assert times["id"] == 1
    names = [stamp["name"] for stamp in times["timestamps"]]
    received, sent = EDGE[client.protocol]
    assert set(names[:2]) == received
    assert names[2 : 2 + len(MODEL)] == MODEL
    assert sent <= set(names)
    assert [(entry["activity"], entry["tensor"]["name"]) for entry in tensors] == [
        ("TENSOR_QUEUE_INPUT", "INPUT0"),
        ("TENSOR_QUEUE_INPUT", "INPUT1"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT0"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT1"),
    ]


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"trace_rate": "x"}, "INVALID_ARGUMENT", "Unable to parse 'trace_rate', got: x"),
        ({"trace_level": ["OFF", "TENSORS"]}, "INVALID_ARGUMENT", "Expect only one trace level 'OFF' is specified"),
        (
            {"trace_level": ["TENSORS"], "trace_rate": "0"},
            "INVALID_ARGUMENT",
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
        ({"trace_file": "x"}, "UNIMPLEMENTED", "trace file location can not be updated through network protocol"),
    ],
)
def test_what_is_refused(client: Client, changes: dict[str, Any], status: str, text: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.json("update_trace_settings", settings=changes)
    assert status_of(caught.value) == status
    assert caught.value.message() == text


def test_the_log_changes_at_run_time(client: Client, tracing: ServerProcess) -> None:
    """The next line is already in the other layout."""
    client.json("update_log_settings", {"log_format": "ISO8601", "log_verbose_level": 1})
    tracing.signal(signal.SIGTERM)
    tracing.wait_for_line(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ .*Signal \(15\) received")
    assert tracing.wait() == 0
