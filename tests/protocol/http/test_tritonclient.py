"""NVIDIA's own HTTP client, in a process of its own, against the service on loopback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio
import tritonclient.http

from protocol.core import LoadParameters
from tests.protocol.http.conftest import Serve
from tests.protocol.http.fake_core import FakeCore

TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
SCRIPT = Path(__file__).with_name("tritonclient_calls.py")


@pytest.mark.slow
async def test_every_call_of_the_client(serve: Serve) -> None:
    """Each gives what the server holds, or fails with its sentence."""
    server = await serve(FakeCore(class_labels=("cat", "dog")))
    command = [sys.executable, str(SCRIPT), f"{server.host}:{server.port}"]
    with trio.fail_after(60):
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found.pop("good") == [
        f"{form} {coding}" for form in ("binary", "json") for coding in ("None", "gzip", "deflate")
    ]
    assert found == {
        "live": True,
        "ready": True,
        "model_ready": [True, True, False],
        "server": "trioton",
        "metadata": [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}],
        "config": 8,
        "statistics": [3, 3, 3],
        "index": ["echo", "bad", "never"],
        "default_outputs": ["OUT_A"],
        "trace": TRACE,
        "trace_of_model": {**TRACE, "trace_rate": "7", "trace_level": ["TIMESTAMPS"]},
        "trace_cleared": "7",
        "log": LOG,
        "log_changed": {**LOG, "log_verbose_level": 2, "log_info": False},
        "shared_memory": {
            "regions": ["in", "out"],
            "one_region": [{"name": "out", "offset": 64, "byte_size": 192}],
            "numbers": True,
            "words": ["größe", "", "b"],
            "in_response": [["datatype", "name", "shape"]] * 2,
            "after_one": ["out"],
            "after_all": [],
            "cuda": [],
        },
        "classified": [["0.500000:1:dog", "0.250000:0:cat"]] * 2,
        "failures": {
            "unknown": ["404", "Request for unknown model: 'none' is not found"],
            "decoupled": ["501", "HTTP end point doesn't support models with decoupled transaction policy"],
            "lost_region": ["404", "Unable to find shared memory region: 'lost'"],
            "unknown_region": ["404", "Unable to find system shared memory region: 'lost'"],
            "no_segment": ["400", "Unable to open shared memory region: '/trioton_test_none'"],
            "no_gpu": ["400", "failed to register CUDA shared memory region: 'r', GPUs not supported"],
            "trace_of_unknown": ["404", "Request for unknown model: 'none' is not found"],
            "log_file": ["501", "log file location can not be updated through network protocol"],
        },
    }
    overrides = LoadParameters('{"backend":"python"}', {"1/model.py": b"\x00code"})
    assert server.core.calls[:4] == [
        ("load", "plain", LoadParameters()),
        ("load", "made", overrides),
        ("unload", "plain", False),
        ("unload", "made", True),
    ]
    request = server.core.requests[0]
    assert (request.sequence_id, request.sequence_start, request.priority) == (9, True, 2)
    assert (request.timeout_microseconds, request.parameters, request.id) == (1000, {"custom": 5}, "42")


def test_no_call_of_the_client_is_left_out() -> None:
    """What the script does not call makes no request of its own."""
    text = SCRIPT.read_text()
    methods = [name for name in vars(tritonclient.http.InferenceServerClient) if not name.startswith("_")]
    without_request = {"close", "generate_request_body", "parse_response_body"}
    assert {name for name in methods if f"client.{name}" not in text} == without_request
