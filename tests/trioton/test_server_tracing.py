"""A whole server that traces: the file at its end, and tracing that cannot start."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from protocol.errors import NotFound
from protocol.messages import InferenceRequest, Tensor
from protocol.server_settings import LogSettings
from tests.e2e.repository import add_add_sub
from trioton.flags.trace import trace_option
from trioton.log.server_log import ServerLog
from trioton.server import Server, StartError, open_server
from trioton.settings import Settings


def settings(repository: Path, *options: str) -> Settings:
    """Without edges: the tests speak to the core."""
    return Settings(
        model_repository=(repository,),
        allow_http=False,
        allow_grpc=False,
        allow_metrics=False,
        trace_config=tuple(trace_option(option) for option in options),
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_add_sub(tmp_path / "models" / "m", versions=(1,))
    return tmp_path / "models"


async def infer(server: Server, model: str = "m") -> None:
    """As an edge does it."""
    row = np.ones((1, 16), np.float32)
    request = InferenceRequest(model, [Tensor.from_numpy(name, row) for name in ("INPUT0", "INPUT1")], id="r")
    request.trace = server.tracer.sample(model)
    try:
        await server.core.infer(request)
    finally:
        if request.trace is not None:
            request.trace.end()


async def test_the_traces_of_a_server(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = [f"triton,file={path}", "level=timestamps", "level=tensors", "rate=2"]
    async with open_server(settings(repository, *options)) as server:
        for _ in range(4):
            await infer(server)
        with pytest.raises(NotFound):
            await infer(server, "unknown")
        with pytest.raises(NotFound, match="Request for unknown model: 'unknown' is not found"):
            server.tracer.update({"trace_rate": ["1"]}, "unknown")
    entries: list[dict[str, Any]] = json.loads(await trio.Path(path).read_bytes())
    assert [entry for entry in entries if "model_name" in entry] == [
        {"id": id, "model_name": "m", "model_version": 1, "request_id": "r"} for id in (1, 2)
    ]
    stamps = Counter(stamp["name"] for entry in entries for stamp in entry.get("timestamps", ()))
    compute = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
    assert stamps == dict.fromkeys(("REQUEST_START", "QUEUE_START", *compute, "REQUEST_END"), 2)
    outputs = [entry["tensor"] for entry in entries if entry.get("activity") == "TENSOR_BACKEND_OUTPUT"]
    assert outputs[0] == {"name": "OUTPUT0", "data": ",".join(16 * ["2.0"]), "shape": "1,16", "dtype": "FP32"}


async def test_tracing_that_cannot_start(repository: Path, tmp_path: Path) -> None:
    """It is said before the models load, and nothing is left."""
    server = Server(settings(repository, f"triton,file={tmp_path}/no/t.json"))
    threads = threading.active_count()
    with pytest.raises(StartError, match=r"directory of the trace file '.*/no/t.json' does not exist; see --trace"):
        await server.run()
    assert threading.active_count() <= threads + 1  # a worker of Trio's


async def test_the_log_that_clients_control(repository: Path) -> None:
    """Without one of its own a server remembers what it is told."""
    inert = Server(settings(repository)).log
    assert inert.settings == LogSettings()
    inert.update(replace(inert.settings, log_info=False))
    assert inert.settings == LogSettings(log_info=False)
    given = ServerLog(settings(repository))
    assert Server(settings(repository), given).log is given
