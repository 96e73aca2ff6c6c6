"""The rate limiter of a running server: instances that share a resource take turns."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess

# Replies with when it has run, on the clock that all processes of the machine share.
STAMPS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        began = time.monotonic()
        time.sleep(0.05)
        stamps = np.array([began, time.monotonic()], np.float64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("STAMPS", stamps)]) for _ in requests]
"""
# Calls the model b, whose answer it gives.
CALLS_B = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.call(request) for request in requests]

    def call(self, request):
        return pb_utils.InferenceRequest(
            model_name="b", inputs=request.inputs(), requested_output_names=["STAMPS"]
        ).exec()
"""
CONFIG = """
backend: "python"
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "STAMPS" data_type: TYPE_FP64 dims: [ 2 ] }} ]
instance_group [ {{ count: {count} kind: KIND_CPU rate_limiter {{ resources [ {resource} ] priority: 1 }} }} ]
"""
SHARED = '{ name: "R" global: true count: 1 }'


def add_model(model: Path, *, count: int, resource: str, text: str = STAMPS) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(text)
    (model / "config.pbtxt").write_text(CONFIG.format(count=count, resource=resource))


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("limited")
    add_model(repository / "a", count=2, resource=SHARED)
    add_model(repository / "b", count=1, resource=SHARED)
    add_model(repository / "calls_b", count=1, resource="", text=CALLS_B)
    add_model(repository / "holds_and_calls_b", count=1, resource=SHARED, text=CALLS_B)
    add_model(repository / "needy", count=1, resource='{ name: "N" count: 3 }')
    add_model(repository / "elsewhere", count=1, resource='{ name: "E" count: 1 }')
    add_model(repository / "unnamed", count=1, resource='{ name: "U" global: true count: 1 }')
    add_model(repository / "both", count=1, resource='{ name: "B" global: true count: 1 }, { name: "B" count: 1 }')
    with ServerProcess(
        "--rate-limit=execution_count",
        "--rate-limit-resource=R:1",
        "--rate-limit-resource=N:2",
        "--rate-limit-resource=E:4:3",
        "--rate-limit-resource=B:1",
        "--exit-on-error=false",
        repository=repository,
    ) as process:
        yield process


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_instances_that_share_a_resource_never_run_at_the_same_time(limited: ServerProcess, protocol: str) -> None:
    """Of one model and of two, however many requests there are."""

    def call(model: str) -> tuple[float, float]:
        with Client(protocol, limited.addresses[protocol]) as client:
            began, ended = client.infer(model, {"X": np.zeros(1, np.float32)})["STAMPS"]
        return float(began), float(ended)

    with ThreadPoolExecutor(6) as pool:
        runs = sorted(pool.map(call, ["a", "b", "a", "a", "b", "a"]))
    assert all(ended <= began for (_, ended), (began, _) in pairwise(runs))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_call_that_waits_for_what_its_caller_holds_is_refused(limited: ServerProcess, protocol: str) -> None:
    """Before it waits for ever; all others go on, also those that call the same model and hold nothing."""
    with Client(protocol, limited.addresses[protocol]) as client:
        inputs = {"X": np.zeros(1, np.float32)}
        for _ in range(2):
            with pytest.raises(InferenceServerException, match="model 'b' needs resource \"R\", of which too much is"):
                client.infer("holds_and_calls_b", inputs)
            assert client.infer("calls_b", inputs)["STAMPS"].shape == (2,)


TOO_FEW = (
    'Resource count for "{}" is limited to {} which will prevent scheduling of one or more model instances, the '
    "minimum required count is {}"
)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("needy", TOO_FEW.format("N", 2, 3)),
        ("elsewhere", TOO_FEW.format("E", 0, 1)),
        ("unnamed", TOO_FEW.format("U", 0, 1)),
        ("both", 'Resource "B" is present as both global and device-specific resource in the model configuration.'),
    ],
)
def test_a_model_that_could_never_run_is_not_loaded(limited: ServerProcess, model: str, text: str) -> None:
    with Client("http", limited.addresses["http"]) as client:
        (entry,) = [each for each in client.json("get_model_repository_index") if each["name"] == model]
        assert entry["state"] == "UNAVAILABLE"
        assert text in entry["reason"]
