"""NVIDIA's own HTTP client, in a process of its own, against the service on loopback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from protocol.core import LoadParameters
from tests.protocol.http.conftest import Serve

SCRIPT = Path(__file__).with_name("tritonclient_calls.py")


async def test_every_call_of_the_client(serve: Serve) -> None:
    """Each call that exists gives what the core holds; each that is to come fails with a sentence."""
    server = await serve()
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
        "unknown": ["404", "Request for unknown model: 'none' is not found"],
        "classification": ["501", "output 'OUT_A': classification (parameter 'classification') is not supported yet"],
        "trace": ["501", "the trace extension is not supported yet"],
        "log": ["501", "the logging extension is not supported yet"],
        "system": ["501", "system shared memory is not supported yet"],
        "cuda": ["501", "CUDA shared memory is not supported yet"],
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
