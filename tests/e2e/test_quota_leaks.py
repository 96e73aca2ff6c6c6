"""Whoever leaves, in whatever way and moment, gives back its place in a quota: random clients, and a sum at the end."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.e2e.client import Client
from tests.e2e.http2_client import Http2Client
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_batching import metric

pytestmark = pytest.mark.slow

MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        get = pb_utils.get_input_tensor_by_name
        tensors = [pb_utils.Tensor("FILE", get(each, "FILE").as_numpy()) for each in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
CONFIG = """
backend: "python"
input [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
PLACES = 40
KEY = "the-key-of-alice-0000"
BODY = b'{"inputs":[{"name":"FILE","datatype":"BYTES","shape":[1],"data":["x"]}]}'
HEAD = (
    "POST /v2/models/m/{} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEY + "\r\nContent-Length: {}\r\n\r\n"
).format


def raw(server: ServerProcess, rng: random.Random) -> None:
    """A request over HTTP/1, whole or not, right or wrong, whose client reads or leaves."""
    body = rng.choice([BODY, BODY, b"{", b'{"FILE": "x"}'])
    path = rng.choice(["infer", "infer", "generate", "generate_stream"])
    sent = HEAD(path, len(body)).encode() + body
    host, port = server.addresses["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(sent[: rng.choice([len(sent), len(sent), rng.randrange(len(sent))])])
        if rng.random() < 0.3:
            connection.sendall(sent)
        if rng.random() < 0.5 and sent.endswith(body):
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536) and rng.random() < 0.9:
                pass


def http2(server: ServerProcess, rng: random.Random) -> None:
    with Http2Client(server.addresses["http"], window=1 << 20) as client:
        key = [("authorization", f"Bearer {KEY}")]
        count = rng.randrange(1, 6)
        for stream in [client.post("/v2/models/m/infer", BODY, more=key) for _ in range(count)]:
            if rng.random() < 0.4:
                client.reset(stream)


def over_grpc(server: ServerProcess, rng: random.Random) -> None:
    with Client("grpc", server.addresses["grpc"]) as client:
        inputs = client.tensors({"FILE": np.array([b"x"], dtype=object)})
        headers = {"authorization": f"Bearer {KEY}"}
        calls = [
            client.raw.async_infer("m", inputs, lambda result, error: None, headers=headers)
            for _ in range(rng.randrange(1, 6))
        ]
        for call in calls:
            if rng.random() < 0.6:
                call.cancel()


def over_a_stream(server: ServerProcess, rng: random.Random) -> None:
    with Client("grpc", server.addresses["grpc"]) as client:
        inputs = client.tensors({"FILE": np.array([b"x"], dtype=object)})
        client.raw.start_stream(lambda result, error: None, headers={"authorization": f"Bearer {KEY}"})
        for _ in range(rng.randrange(1, 8)):
            client.raw.async_stream_infer(rng.choice(["m", "m", "nowhere"]), inputs)
        client.raw.stop_stream(cancel_requests=rng.random() < 0.7)


ACTS: list[Callable[[ServerProcess, random.Random], None]] = [raw, raw, http2, over_grpc, over_a_stream]


@pytest.mark.parametrize(("module", "edges"), [("trioton", 0), ("tests.e2e.without_fast_path", 0), ("trioton", 2)])
def test_no_place_is_lost(tmp_path: Path, module: str, edges: int) -> None:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").write_text(MODEL)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(CONFIG)
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f"[quotas.q]\nconcurrent_requests = {PLACES}\n[quotas.q.models.other]\nconcurrent_requests = 1\n"
        f"[keys.alice]\nkey = '{KEY}'\nallow = ['all']\nquota = 'q'\nweight = 1\n"
        "[anonymous]\nallow = ['metrics']\n"
    )
    flags = (f"--auth-keys-file={keys}", f"--edge-processes={edges}")
    with ServerProcess(*flags, repository=tmp_path / "models", module=module) as server:
        failures: list[BaseException] = []

        def act(seed: int) -> None:
            rng = random.Random(seed)
            try:
                for _ in range(40):
                    rng.choice(ACTS)(server, rng)
            except BaseException as error:  # raised below
                failures.append(error)

        threads = [threading.Thread(target=act, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        # What edge processes count comes once in a second.
        assert eventually(lambda: metric(server, "trioton_key_requests_total", key="alice") > 100)
        assert eventually(lambda: metric(server, "trioton_key_running_requests", key="alice") == 0)
        url = f"http://{server.addresses['http']}/v2/models/m/infer"
        answer = httpx.post(url, content=BODY, headers={"authorization": f"Bearer {KEY}"})
        assert answer.headers["ratelimit"] == f'"concurrent_requests";r={PLACES - 1};t=1'
        assert "Traceback" not in server.log
