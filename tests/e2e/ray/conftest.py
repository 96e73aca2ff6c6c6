"""A cluster of Ray, and a model whose requests take a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ray.clients import MODEL
from tests.e2e.ray.nodes import HEAD, NODE, OTHER

MODEL_FILE = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.1)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", 2 * pb_utils.get_input_tensor_by_name(request, "X").as_numpy())]
            )
            for request in requests
        ]
"""
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'trioton[ray]'")
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5"}
    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE, "node_ip_address": HEAD, "include_dashboard": False}
    )
    cluster.add_node(node_ip_address=OTHER, **NODE)
    ray.init(address=cluster.address, _node_ip_address=HEAD)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    version = folder / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL_FILE)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return folder
