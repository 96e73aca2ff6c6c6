"""Triton's debugging variables on a running server: schedulers and gRPC calls are held until the test wants them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess

# Replies with how many requests its batch has.
BATCH_SIZE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        size = np.array([[len(requests)]], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SIZE", size)]) for _ in requests]
"""
CONFIG = """
backend: "python" max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { }
"""
INPUTS = {"X": np.zeros((1, 1), np.float32)}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "size" / "1").mkdir(parents=True)
    (tmp_path / "size" / "1" / "model.py").write_text(BATCH_SIZE)
    (tmp_path / "size" / "config.pbtxt").write_text(CONFIG)
    return tmp_path


def size(client: Client, **more: Any) -> int:
    return int(client.infer("size", INPUTS, **more)["SIZE"][0, 0])


def test_a_scheduler_waits_for_so_many_requests(repository: Path) -> None:
    environment = {"TRITONSERVER_DELAY_SCHEDULER": "4"}
    with (
        ServerProcess(repository=repository, environment=environment) as server,
        Client("grpc", server.addresses["grpc"]) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        server.wait_for_line("requests are held, for tests: TRITONSERVER_DELAY_SCHEDULER is set")
        assert list(pool.map(lambda _: size(client), range(4))) == [4] * 4
        assert size(client) == 1, "from then on as ever"


def test_calls_over_grpc_are_held(repository: Path) -> None:
    """Until after their deadline; those over HTTP are not."""
    environment = {"TRITONSERVER_DELAY_GRPC_PROCESS": "600000"}
    with (
        ServerProcess(repository=repository, environment=environment) as server,
        Client("http", server.addresses["http"]) as http,
        Client("grpc", server.addresses["grpc"]) as grpc,
    ):
        with pytest.raises(InferenceServerException, match=r"DEADLINE_EXCEEDED|Deadline Exceeded"):
            size(grpc, client_timeout=0.5)
        assert size(http) == 1
        (statistics,) = http.json("get_inference_statistics", "size")["model_stats"]
        assert int(statistics["inference_count"]) == 1
