"""The load report is read from the metrics of engines, and from those that a model has made itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import httpx
import numpy as np
import pytest
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from actors.metrics.custom import CustomMetrics
from backends.engines.metrics.engine import EngineMetrics
from backends.engines.metrics.metric_set import MetricSet
from backends.engines.worker.trioton_engine.engine import EngineInfo, Stats
from tests.backends.engines.models import write_model
from tests.e2e.repository import add_add_sub, add_types
from tests.trioton.test_server import settings
from trioton.load_report import FAMILY, cache_report
from trioton.metrics.custom import is_own_name
from trioton.server import open_server
from trioton.service_names import address_text

Blocks = dict[str, float]

FULL: Blocks = {"used": 30, "max": 40, "tokens_per": 64, "free": 10}
FULL_REPORT = {"kv_cache_utilization": 0.75, "max_token_capacity": 2560}
INPUTS = ("INPUT0", "INPUT1")
JSON = {"endpoint-load-metrics-format": "json"}


def add_blocks(metrics: CustomMetrics, model: str, blocks: Blocks, version: str = "1") -> None:
    """As TensorRT-LLM's backend has them."""
    family = metrics.family(FAMILY, "Blocks of the key-value cache", "gauge")
    for kind, value in blocks.items():
        family.metric({"model": model, "version": version, "kv_cache_block_type": kind}, ()).set(value)


def add_engine(metrics: CustomMetrics, model: str, stats: Stats, waiting: int = 0, engine: str = "0") -> None:
    labels = {"model_name": model, "engine": engine, "model": model, "version": "1"}
    EngineMetrics(MetricSet(metrics, labels), info=EngineInfo()).begin(stats, waiting)


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ({"m": FULL}, FULL_REPORT),
        ({"a": {**FULL, "used": 4}, "b": FULL, "c": {**FULL, "used": 0}}, FULL_REPORT),
        ({"m": {**FULL, "used": 4}, "b": FULL}, {**FULL_REPORT, "kv_cache_utilization": 0.1}),
        ({"m": {**FULL, "max": 0}}, {"kv_cache_utilization": 0.0, "max_token_capacity": 0}),
        ({"m": {"used": 1, "max": 2}}, {}),
        ({}, {}),
    ],
)
def test_the_report_of_tensorrt_llm(models: dict[str, Blocks], expected: dict[str, float]) -> None:
    """Of the model itself, else of the fullest."""
    metrics = CustomMetrics(is_own_name)
    for model, blocks in models.items():
        add_blocks(metrics, model, blocks)
    assert cache_report(metrics, "m") == expected


def test_the_fullest_version_speaks() -> None:
    metrics = CustomMetrics()
    for version, used in (("1", 3), ("2", 30), ("3", 20)):
        add_blocks(metrics, "m", {**FULL, "used": used}, version)
    assert cache_report(metrics, "m") == FULL_REPORT


def test_the_report_of_an_engine() -> None:
    """What vLLM's server tells, and Triton where the size of the cache is known; of all instances together."""
    metrics = CustomMetrics()
    add_engine(metrics, "m", Stats(2, 1, 0.5, 64, 16), waiting=3)
    add_engine(metrics, "m", Stats(0, 0, 0.25, 32, 16), engine="1")
    add_engine(metrics, "other", Stats(1, 7, 1.0))
    add_blocks(metrics, "third", FULL)
    assert cache_report(metrics, "m") == {
        "kv_cache_utilization": 0.375,
        "max_token_capacity": 96 * 16,
        "num_requests_waiting": 4,
        "kv_cache_usage_perc": 0.375,
    }
    assert cache_report(metrics, "other") == {"num_requests_waiting": 7, "kv_cache_usage_perc": 1.0}
    assert cache_report(metrics, "an ensemble of them") == cache_report(metrics, "other")


@pytest.mark.slow
async def test_a_server_reports_what_its_metrics_show(tmp_path: Path) -> None:
    add_types(tmp_path / "echo", ("BYTES",))
    async with open_server(settings(tmp_path)) as server, httpx.AsyncClient() as client:
        host, port = server.addresses["http"]
        url = f"http://{host}:{port}/v2/models/echo/generate"
        response = await client.post(url, json={"IN_BYTES": "hi"}, headers=JSON)
        assert response.status_code == 200
        requests = '"num_requests_running":0,"num_requests_waiting":0},"application_utilization":0.0}'
        assert response.headers["endpoint-load-metrics"] == f'JSON {{"named_metrics":{{{requests}'
        add_blocks(server.core.custom_metrics, "echo", FULL)
        response = await client.post(url, json={"IN_BYTES": "hi"}, headers=JSON)
        assert response.headers["endpoint-load-metrics"] == (
            f'JSON {{"named_metrics":{{"kv_cache_utilization":0.75,"max_token_capacity":2560,{requests}'
        )
        host, port = server.addresses["metrics"]
        assert f'{FAMILY}{{kv_cache_block_type="used"' in (await client.get(f"http://{host}:{port}/metrics")).text


@pytest.mark.slow
async def test_an_engine_reports_on_each_route(tmp_path: Path) -> None:
    """Whole answers and streams, of generate and of the OpenAI interface."""
    write_model(tmp_path / "echo", "scripted")
    async with open_server(settings(tmp_path)) as server, httpx.AsyncClient(timeout=60) as client:
        host, port = server.addresses["http"]
        chat = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        bodies: list[tuple[str, dict[str, object]]] = [
            ("v2/models/echo/generate", {"text_input": "hi", "max_tokens": 1}),
            ("v2/models/echo/generate_stream", {"text_input": "hi", "stream": True, "max_tokens": 1}),
            ("v1/completions", {"model": "echo", "prompt": "hi", "max_tokens": 1}),
            ("v1/completions", {"model": "echo", "prompt": "hi", "max_tokens": 1, "stream": True}),
            ("v1/chat/completions", chat),
            ("v1/chat/completions", {**chat, "stream": True}),
        ]
        for path, body in bodies:
            for form in ("json", "text"):
                response = await client.post(
                    f"http://{host}:{port}/{path}", json=body, headers={"endpoint-load-metrics-format": form}
                )
                assert response.status_code == 200, response.text
                header = response.headers["endpoint-load-metrics"]
                assert header.startswith(f"{form.upper()} ")
                # What is in use may still be this request's.
                assert re.findall(r"(\w+)\"?[:=][\d.]+", header) == [
                    "kv_cache_utilization",
                    "max_token_capacity",
                    "num_requests_waiting",
                    "kv_cache_usage_perc",
                    "num_requests_running",
                    "application_utilization",
                ]


@pytest.mark.slow
async def test_every_model_reports_on_every_protocol(tmp_path: Path) -> None:
    """Over HTTP with the response, over gRPC behind it, of single calls and of streams."""
    add_add_sub(tmp_path / "first", versions=(1,))
    async with open_server(settings(tmp_path)) as server, httpx.AsyncClient() as client:
        address = address_text(server.addresses["grpc"])
        for form, start in (("json", "JSON {"), ("text", "TEXT named_metrics.num_requests_running=0"), ("bin", "BIN ")):
            body = {"inputs": [{**ONES, "name": name} for name in INPUTS]}
            url = f"http://{address_text(server.addresses['http'])}/v2/models/first/infer"
            response = await client.post(url, json=body, headers={"endpoint-load-metrics-format": form})
            assert response.headers["endpoint-load-metrics"].startswith(start), response.text
            unary, streamed = await trio.to_thread.run_sync(grpc_trailers, address, form)
            assert unary == streamed
            if form != "bin":  # that gRPC's own library keeps to itself
                assert str(unary["endpoint-load-metrics"]).startswith(start)
        assert await trio.to_thread.run_sync(grpc_trailers, address, "") == ({}, {})


ONES = {"datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}


def grpc_trailers(address: str, form: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What grpcio is told of load behind a call, and behind a stream."""
    tensors = [service_pb2.ModelInferRequest.InferInputTensor(name=n, datatype="FP32", shape=[1, 16]) for n in INPUTS]
    request = service_pb2.ModelInferRequest(
        model_name="first", inputs=tensors, raw_input_contents=[np.ones(16, np.float32).tobytes()] * 2
    )
    metadata = [("endpoint-load-metrics-format", form)] if form else []
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        _, call = stub.ModelInfer.with_call(request, metadata=metadata)
        stream = stub.ModelStreamInfer(iter([request]), metadata=metadata)
        assert len(list(stream)) == 1
        found = [dict(each.trailing_metadata()) for each in (call, stream)]
    unary, streamed = [{key: value for key, value in each.items() if key.startswith("endpoint-")} for each in found]
    return unary, streamed
