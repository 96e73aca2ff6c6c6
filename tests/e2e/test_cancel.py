"""Requests of a slow model, stopped by their id while they run and while they wait."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from protocol.proto import message_class
from tests.e2e.client import Array, Client, status_of
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_batching import metric

# Says that it runs by making the file that it is given, and then gives no answer for far longer than a test may take.
MODEL = """
import pathlib
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            pathlib.Path(pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy()[0].decode()).touch()
        time.sleep(600)
"""
CONFIG = """
backend: "python"
input [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
WAITING = "nv_inference_pending_request_count"


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[ServerProcess]:
    """One instance, so that the second request waits."""
    repository = tmp_path / "models"
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "1" / "model.py").write_text(MODEL)
    (repository / "slow" / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(repository=repository) as process:
        yield process


def cancel_over_http(server: ServerProcess, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{server.addresses['http']}/v2/models/{path}/cancel", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def cancel_over_grpc(server: ServerProcess, **fields: str) -> int:
    response: Any = message_class("trioton.CancelResponse")
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        call = channel.unary_unary(
            "/trioton.RequestControl/Cancel",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        answer = call(message_class("trioton.CancelRequest")(**fields), timeout=30)
    return int(answer.cancelled)


@pytest.mark.parametrize("by", ["http", "grpc"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_running_and_a_waiting_request_are_stopped(
    slow: ServerProcess, protocol: str, by: str, tmp_path: Path
) -> None:
    """Both ends of either protocol; what has another id goes on waiting, and the failures are counted as cancelled."""
    running, waiting = "läuft/1 ?", "wartet"

    def cancel(request_id: str) -> int:
        if by == "grpc":
            return cancel_over_grpc(slow, model_name="slow", id=request_id)
        status, answer = cancel_over_http(slow, f"slow/requests/{quote(request_id, safe='')}")
        assert status == 200
        return int(answer["cancelled"])

    with Client(protocol, slow.addresses[protocol]) as client, ThreadPoolExecutor() as threads:

        def infer(request_id: str, file: Path) -> dict[str, Array]:
            return client.infer("slow", {"FILE": np.array([str(file)], np.object_)}, request_id=request_id)

        first = threads.submit(infer, running, tmp_path / "began")
        assert eventually((tmp_path / "began").exists)
        second = threads.submit(infer, waiting, tmp_path / "never")
        assert eventually(lambda: metric(slow, WAITING, model="slow") == 1)
        assert cancel("other") == 0
        assert cancel(waiting) == 1
        with pytest.raises(InferenceServerException, match="was cancelled") as of_waiting:
            second.result(30)
        assert not first.done()
        assert cancel(running) == 1
        with pytest.raises(InferenceServerException, match="was cancelled") as of_running:
            first.result(30)
        expected = {"http": "INVALID_ARGUMENT", "grpc": "CANCELLED"}[protocol]
        assert [status_of(caught.value) for caught in (of_waiting, of_running)] == [expected] * 2
    assert metric(slow, "nv_inference_request_failure", model="slow", reason="CANCELED") == 2
    assert metric(slow, WAITING, model="slow") == 0
    assert not (tmp_path / "never").exists()


def test_what_is_not_there(slow: ServerProcess) -> None:
    """An unknown id is nothing to stop; an unknown model or version is a mistake."""
    assert cancel_over_http(slow, "slow/requests/nobody") == (200, {"cancelled": 0})
    assert cancel_over_http(slow, "slow/versions/1/requests/nobody") == (200, {"cancelled": 0})
    status, answer = cancel_over_http(slow, "nope/requests/a")
    assert (status, answer["error"]) == (404, "Request for unknown model: 'nope' is not found")
    with pytest.raises(grpc.RpcError) as caught:
        cancel_over_grpc(slow, model_name="slow", model_version="9", id="a")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert cancel_over_grpc(slow, model_name="slow", model_version="1", id="a") == 0
