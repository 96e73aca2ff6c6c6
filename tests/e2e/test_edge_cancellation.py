"""What becomes of inferences whose edge process is killed: the models are told within seconds that nobody waits."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.edge_processes import edges_of
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually
from tests.e2e.test_cancellation import WATCHING

pytestmark = pytest.mark.slow
EDGES = 2
# A second is what is promised; this is what a machine gets that has other things to do.
GIVEN_UP_SECONDS = 15.0
CONFIG = """
backend: "python"
input { name: "NAME" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "SAID" data_type: TYPE_STRING dims: [ -1 ] }
instance_group { count: 5 kind: KIND_CPU }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("watching")
    (folder / "watching" / "1").mkdir(parents=True)
    (folder / "watching" / "1" / "model.py").write_text(WATCHING)
    (folder / "watching" / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(f"--edge-processes={EDGES}", repository=folder) as running:
        assert len(running.addresses) == 3
        yield running


def ask_by_http(server: ServerProcess, names: list[str], headers: dict[str, str]) -> None:
    tensor = {"name": "NAME", "shape": [len(names)], "datatype": "BYTES", "data": names}
    url = f"http://{server.addresses['http']}/v2/models/watching/infer"
    with pytest.raises(httpx.TransportError):
        httpx.post(url, content=json.dumps({"inputs": [tensor]}), headers=headers, timeout=TIMEOUT_SECONDS)


def ask_by_grpc(server: ServerProcess, name: str, compression: grpc.Compression | None) -> None:
    request = service_pb2.ModelInferRequest(model_name="watching")
    request.inputs.add(name="NAME", datatype="BYTES", shape=[1]).contents.bytes_contents.append(name.encode())
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(request, compression=compression, timeout=TIMEOUT_SECONDS)


def test_what_a_killed_edge_has_asked_for_is_given_up(server: ServerProcess, tmp_path: Path) -> None:
    """Wherever it was: submitted by a callback or by a task of the edge, or relayed."""
    names = [str(tmp_path / way) for way in ("plain", "long", "relayed", "grpc", "compressed")]
    plain, long, relayed, by_grpc, compressed = names
    calls = [
        threading.Thread(target=ask_by_http, args=(server, [plain], {})),
        threading.Thread(target=ask_by_http, args=(server, [long] + ["x" * 100] * 2000, {})),
        threading.Thread(target=ask_by_http, args=(server, [relayed], {"endpoint-load-metrics-format": "text"})),
        threading.Thread(target=ask_by_grpc, args=(server, by_grpc, None)),
        threading.Thread(target=ask_by_grpc, args=(server, compressed, grpc.Compression.Gzip)),
    ]
    for call in calls:
        call.start()
    assert eventually(lambda: all(Path(f"{name}.seen").exists() for name in names))
    killed = time.monotonic()
    for edge in edges_of(server).values():
        os.kill(edge, signal.SIGKILL)
    assert eventually(lambda: all(Path(f"{name}.gone").exists() for name in names))
    assert time.monotonic() - killed < GIVEN_UP_SECONDS
    for call in calls:
        call.join(TIMEOUT_SECONDS)
        assert not call.is_alive()
    assert eventually(lambda: len(edges_of(server)) == EDGES)
