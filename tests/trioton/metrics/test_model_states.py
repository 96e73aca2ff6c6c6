"""Metrics of a whole server: instances and their restarts, requests in flight, batches, loads, connections, its log."""

from __future__ import annotations

import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from protocol.errors import ServerError
from protocol.messages import InferenceRequest, Tensor
from tests.e2e.client import Client
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess
from tests.trioton.metrics.texts import text_of
from tests.trioton.test_server import settings
from trioton.flags.metrics import metric_setting
from trioton.server import Server, open_server

pytestmark = pytest.mark.slow


def found(text: str, name: str, **labels: str) -> dict[str, float]:
    """Samples of a name by the labels that were not asked for."""
    return {
        ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key not in labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def shown(server: Server, name: str, **labels: str) -> dict[str, float]:
    return found(text_of(server._parts.metrics), name, **labels)


MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
dynamic_batching {}
input { name: "IN" data_type: TYPE_FP32 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


def request_of(rows: int, columns: int = 16) -> InferenceRequest:
    return InferenceRequest("m", [Tensor.from_numpy("IN", np.ones((rows, columns), np.float32))])


async def test_a_model_that_serves(repository: Path) -> None:
    async with open_server(settings(repository)) as server:
        assert shown(server, "trioton_model_instances", model="m") == {"state=ready,version=1": 1}
        assert shown(server, "trioton_instance_restarts_total", model="m") == {"version=1": 0}
        assert shown(server, "trioton_requests_in_flight", model="m") == {"version=1": 0}
        assert shown(server, "trioton_model_loads_total") == {"": 1}
        assert shown(server, "trioton_worker_processes")[""] >= 1
        assert shown(server, "trioton_process_resident_memory_bytes")["role=worker"] > 1 << 20
        (labels,) = shown(server, "trioton_build_info")
        assert "python=3." in labels


async def test_what_batches_leave(repository: Path) -> None:
    """Their sizes, by powers of two below the largest, where all histograms are asked for; and the memory that large
    tensors cross to the worker in."""
    histograms = (metric_setting("histogram_latencies=true"),)
    async with open_server(settings(repository, metrics_config=histograms)) as server:
        assert shown(server, "trioton_worker_arena_bytes") == {}
        for rows in (1, 3, 8):
            await server.core.infer(request_of(rows))
        sizes = shown(server, "trioton_batch_size_bucket", model="m", version="1")
        assert sizes == {"le=1.0": 1, "le=2.0": 1, "le=4.0": 2, "le=+Inf": 3}
        assert shown(server, "trioton_batch_size_sum", model="m") == {"version=1": 12}
        await server.core.infer(request_of(8, 100_000))
        assert shown(server, "trioton_worker_arena_bytes", model="m")["version=1"] >= 8 * 100_000 * 4


async def test_batch_sizes_that_a_model_asks_for(repository: Path) -> None:
    """By default there are none, and a model may give bounds; of why batches went there is what has occurred."""
    (repository / "m").rename(repository / "plain")
    shutil.copytree(repository / "plain", repository / "m")
    control = 'metric_identifier { family: "trioton_batch_size" } histogram_options { buckets: [ 2 ] }'
    with (repository / "m" / "config.pbtxt").open("a") as file:
        file.write(f"model_metrics {{ metric_control {{ {control} }} }}\n")
    async with open_server(settings(repository)) as server:
        assert shown(server, "trioton_batch_flush_total") == {}
        for rows in (1, 8):
            await server.core.infer(request_of(rows))
        sizes = shown(server, "trioton_batch_size_bucket", version="1")
        assert sizes == {"le=2.0,model=m": 1, "le=+Inf,model=m": 2}
        assert shown(server, "trioton_batch_flush_total", model="m", version="1") == {
            "reason=idle_instance": 1,
            "reason=full": 1,
        }


async def test_requests_in_flight(repository: Path) -> None:
    """Those that a client waits for, until they are answered."""
    async with open_server(settings(repository)) as server:
        seen: list[float] = []

        class Reply:
            def send_nowait(self, value: object) -> None:
                answered.set()

        answered = trio.Event()
        submitted = server.core.submit(request_of(1), Reply())
        seen += shown(server, "trioton_requests_in_flight", model="m").values()
        await answered.wait()
        submitted.end()
        seen += shown(server, "trioton_requests_in_flight", model="m").values()
    assert seen == [1, 0]


async def test_loads_that_fail(repository: Path) -> None:
    """By the kind of the error; a model is named as long as its last load is the one that has failed."""
    config = repository / "m" / "config.pbtxt"
    text = config.read_text()
    async with open_server(replace(settings(repository), model_control_mode="explicit")) as server:
        for broken, kind in ((text + "\nmax_batch_size: x", "INVALID_ARG"), (text.replace('"python"', '"nobody"'), "")):
            config.write_text(broken)
            with pytest.raises(ServerError):
                await server.core.load_model("m")
            assert shown(server, "trioton_model_load_failed") == {"model=m": 1}
            if kind:
                assert shown(server, "trioton_model_load_failures_total")[f"reason={kind}"] == 1
        assert sum(shown(server, "trioton_model_load_failures_total").values()) == 2
        config.write_text(text)
        await server.core.load_model("m")
        assert shown(server, "trioton_model_load_failed") == {}
        assert shown(server, "trioton_model_loads_total") == {"": 1}
        with pytest.raises(ServerError):
            await server.core.load_model("never-heard-of")
        assert shown(server, "trioton_model_load_failed") == {}


async def test_connections_and_streams(repository: Path) -> None:
    async with open_server(settings(repository)) as server:
        host, port = server.addresses["http"]
        assert set(shown(server, "trioton_connections").values()) == {0}
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            assert (await client.get("/v2/health/live")).status_code == 200
            assert shown(server, "trioton_connections")["protocol=http"] == 1
            assert shown(server, "trioton_streams")["protocol=http"] == 0


@pytest.fixture
def process(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess(repository=repository) as process:
        yield process


def scrape(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics", timeout=TIMEOUT_SECONDS) as response:
        text: str = response.read().decode()
    return text


def test_a_worker_that_dies(process: ServerProcess) -> None:
    """Its instance is started again, which is counted, as are the events of the log."""
    with Client("http", process.addresses["http"]) as client:
        client.infer("m", {"IN": np.ones((1, 4), np.float32)})
        before = found(scrape(process), "trioton_log_events_total")
        for pid in process.workers():
            os.kill(pid, signal.SIGKILL)
        process.wait_for_line("model instance 'm_0' has died; starting it again")
        text = scrape(process)
    assert found(text, "trioton_instance_restarts_total", model="m") == {"version=1": 1}
    after = found(text, "trioton_log_events_total")
    assert after["level=warning"] > before["level=warning"]
    assert after["level=verbose"] == 0
