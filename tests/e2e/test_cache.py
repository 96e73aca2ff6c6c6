"""The response cache of a running server: local and in Redis, over both protocols."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_metrics import values

# Replies with its input, and how often it has run.
COUNTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.runs = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.runs += 1
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            runs = np.full((1,), self.runs, np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", array), pb_utils.Tensor("RUNS", runs)]))
        return responses
"""
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] }, { name: "RUNS" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
response_cache { enable: true }
"""


def add_model(model: Path) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(COUNTS)
    (model / "config.pbtxt").write_text(CONFIG)


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cached")
    add_model(directory / "counts")
    return directory


@pytest.fixture(scope="module")
def cache_server(cached: Path) -> Iterator[ServerProcess]:
    with ServerProcess(
        "--cache-config=local,size=1048576",
        "--model-control-mode=explicit",
        "--load-model=*",
        repository=cached,
    ) as process:
        yield process


def runs(client: Client, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], **more: Any) -> int:
    """The run that gave the answer."""
    answer = client.infer("counts", {"X": array}, **more)
    np.testing.assert_array_equal(answer["Y"], array)
    return int(answer["RUNS"][0])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_was_asked_before_is_answered_from_the_cache(cache_server: ServerProcess, protocol: str) -> None:
    """The same bytes in another shape, and another parameter, are other requests; another id is not."""
    array = np.full((2, 3), 1 if protocol == "http" else 2, np.float32)
    with Client(protocol, cache_server.addresses[protocol]) as client:
        before = values(cache_server, "counts")
        first = runs(client, array, request_id="a")
        assert runs(client, array, request_id="b") == first
        assert runs(client, array.reshape(3, 2)) == first + 1
        assert runs(client, array, parameters={"style": "other"}) == first + 2
        assert runs(client, array) == first
        after = values(cache_server, "counts")
        rise = {name: after[name] - before[name] for name in after}
        assert rise["nv_cache_num_hits_per_model"] == 2
        assert rise["nv_cache_num_misses_per_model"] == 3
        assert rise["nv_inference_request_success"] == 5
        assert rise["nv_inference_count"] == rise["nv_inference_exec_count"] == 3
        assert rise["nv_cache_miss_duration_per_model"] > 0
        told = client.json("get_inference_statistics", "counts")["model_stats"][0]["inference_stats"]
        assert int(told["cache_hit"]["count"]) == int(after["nv_cache_num_hits_per_model"])
        assert int(told["cache_miss"]["count"]) == int(after["nv_cache_num_misses_per_model"])


def test_answers_are_the_same_over_both_protocols(cache_server: ServerProcess) -> None:
    """What one has brought into the cache, the other gets out of it."""
    array = np.full((1, 1), 3, np.float32)
    with (
        Client("http", cache_server.addresses["http"]) as http,
        Client("grpc", cache_server.addresses["grpc"]) as grpc,
    ):
        assert runs(http, array) == runs(grpc, array)


def test_a_model_that_is_loaded_again_starts_with_none(cache_server: ServerProcess) -> None:
    array = np.full((1, 2), 4, np.float32)
    with Client("http", cache_server.addresses["http"]) as client:
        assert runs(client, array) > 0
        client.raw.unload_model("counts")
        client.raw.load_model("counts")
        assert [runs(client, array * 2), runs(client, array)] == [1, 2]


@needs_redis_server
def test_a_redis_server_is_shared_and_may_fail(cached: Path, tmp_path: Path) -> None:
    """Two servers find each other's answers; without Redis they answer all the same, and log it."""
    array = np.full((1, 3), 5, np.float32)
    with RedisServer(tmp_path) as redis:
        flags = ("--cache-config=redis,host=127.0.0.1", f"--cache-config=redis,port={redis.port}")
        with (
            ServerProcess(*flags, repository=cached) as one,
            ServerProcess(*flags, repository=cached) as other,
            Client("grpc", one.addresses["grpc"]) as first,
            Client("http", other.addresses["http"]) as second,
        ):
            assert runs(first, array * 2) == 1
            assert runs(first, array) == 2
            assert runs(second, array) == 2
            redis.stop()
            assert runs(first, array) == 3
            one.wait_for_line("cache 'redis': .*requests run without it")


@needs_redis_server
def test_a_rolling_update_gets_no_answers_of_the_old_files(tmp_path: Path) -> None:
    """Of the model's name and version, though the new files have the sizes and times of the old ones, as in images
    whose times are all set to the same. A configuration alone makes a difference, too."""
    array = np.full((1, 3), 6, np.float32)
    for name, first_run in (("old", 0), ("copy", 0), ("new", 5), ("configured", 0)):
        add_model(tmp_path / name / "counts")
        script = tmp_path / name / "counts" / "1" / "model.py"
        script.write_text(COUNTS.replace("self.runs = 0", f"self.runs = {first_run}"))
        if name == "configured":
            (tmp_path / name / "counts" / "config.pbtxt").write_text(CONFIG.replace("count: 1", "count: 2"))
        for file in (tmp_path / name / "counts").rglob("*"):
            os.utime(file, ns=(0, 0))
    with RedisServer(tmp_path) as redis, ExitStack() as stack:
        flags = ("--cache-config=redis,host=127.0.0.1", f"--cache-config=redis,port={redis.port}")

        def ran(name: str) -> int:
            server = stack.enter_context(ServerProcess(*flags, repository=tmp_path / name))
            with Client("grpc", server.addresses["grpc"]) as client:
                return runs(client, array)

        first = stack.enter_context(ServerProcess(*flags, repository=tmp_path / "old"))
        with Client("grpc", first.addresses["grpc"]) as old:
            assert [runs(old, array * 2), runs(old, array)] == [1, 2]
            assert [ran("new"), ran("configured"), ran("copy")] == [6, 1, 2]
            assert runs(old, array) == 2


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--cache-config=local,size=12", "setting 'size' expects a whole number from 1024"),
        ("--cache-config=nope,size=12", "unknown cache 'nope'; installed are: local, redis"),
    ],
)
def test_a_server_with_a_wrong_cache_does_not_start(cached: Path, flag: str, text: str) -> None:
    with ServerProcess(flag, repository=cached) as server:
        assert server.wait() == 1
        assert text in server.log
