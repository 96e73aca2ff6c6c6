"""Quotas of keys over both protocols, with Triton's clients and without: what is refused, when, and in which words.

Times are of days, so that nothing is free again while a test runs."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually
from tests.e2e.test_batching import metric

# With a file it says that it runs by making it, and goes on when that is removed; else it is done at once.
MODEL = """
import pathlib
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy()
            if name.flat[0]:
                file = pathlib.Path(name.flat[0].decode())
                file.touch()
                while file.exists():
                    time.sleep(0.01)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("FILE", name)]))
        return responses
"""
CONFIG = """
backend: "python"
input [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
# One instance, which writes down what it runs in the order in which it does; the first one waits as above.
ORDERED = MODEL.replace(
    "            if name.flat[0]:",
    """            with open(os.environ["ORDER"], "a") as order:
                order.write(request.request_id() + " ")
            if name.flat[0]:""",
).replace("import pathlib", "import os, pathlib")
DAY = "seconds = 86400"
QUOTAS = f"""
[quotas.three]
requests = {{ limit = 3, {DAY} }}
[quotas.by-model]
requests = {{ limit = 1, {DAY} }}
[quotas.by-model.models.other]
requests = {{ limit = 2, {DAY} }}
[quotas.one-at-once]
concurrent_requests = 1
[quotas.compute]
compute_seconds = {{ limit = 0.0001, {DAY} }}
[quotas.bytes]
bytes = {{ limit = 1000, {DAY} }}
"""
NAMES = ("three", "by-model", "one-at-once", "compute", "bytes")
PROTOCOLS = ["http", "grpc", "task"]


def keys_text(*users: str, quotas: str = QUOTAS) -> str:
    return quotas + "".join(
        f"[keys.{user}-{name}]\nkey = '{key_of(user, name)}'\nallow = ['inference', 'metadata']\nquota = '{name}'\n"
        for user in users
        for name in NAMES
    )


def key_of(user: str, quota: str) -> str:
    return f"key-of-{user}-with-{quota}"


def headers(user: str, quota: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key_of(user, quota)}"}


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(keys_text(*PROTOCOLS, "both", "plain", "stream"))
    return file


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("held", "other"):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL)
        (folder / name / "config.pbtxt").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "edges"])
def flags(keys_file: Path, request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Also with edge processes, over all of which there is one account for each key."""
    return f"--auth-keys-file={keys_file}", f"--edge-processes={request.param}"


@pytest.fixture(scope="module")
def limited(repository: Path, flags: tuple[str, ...]) -> Iterator[ServerProcess]:
    with ServerProcess(*flags, repository=repository) as process:
        yield process


@pytest.fixture(scope="module")
def without_fast_path(repository: Path, flags: tuple[str, ...]) -> Iterator[ServerProcess]:
    with ServerProcess(*flags, repository=repository, module="tests.e2e.without_fast_path") as process:
        yield process


@pytest.fixture(params=PROTOCOLS)
def client(limited: ServerProcess, without_fast_path: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Also of the name of its user: each has counters of its own."""
    server = without_fast_path if request.param == "task" else limited
    protocol = "http" if request.param == "task" else request.param
    with Client(protocol, server.addresses[protocol]) as made:
        yield made, request.param


def infer(client: Client, user: str, quota: str, *, model: str = "held", file: str = "") -> None:
    client.infer(model, {"FILE": np.array([file.encode()], dtype=object)}, headers=headers(user, quota))


def refusal(client: Client, user: str, quota: str, *, model: str = "held", size: int = 0) -> str:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, {"FILE": np.array([b"x" * size], dtype=object)}, headers=headers(user, quota))
    assert caught.value.status() in ("429", "StatusCode.RESOURCE_EXHAUSTED")
    return str(caught.value.message())


def test_so_many_requests_and_no_more(client: tuple[Client, str]) -> None:
    api, user = client
    for _ in range(3):
        infer(api, user, "three")
    text = f"key '{user}-three' has reached the limit of quota 'three', 3 requests in 86400 s; try again in "
    for _ in range(2):
        assert refusal(api, user, "three").startswith(text)
    assert api.raw.get_model_metadata("held", headers=headers(user, "three"))


def test_a_models_own_limit_is_in_place_of_the_other(client: tuple[Client, str]) -> None:
    api, user = client
    infer(api, user, "by-model")
    assert "1 requests in 86400 s" in refusal(api, user, "by-model")
    infer(api, user, "by-model", model="other")
    infer(api, user, "by-model", model="other")
    assert "2 requests to model 'other' in 86400 s" in refusal(api, user, "by-model", model="other")


def test_so_many_at_once(client: tuple[Client, str], tmp_path: Path) -> None:
    api, user = client
    file = tmp_path / "running"

    def run() -> None:  # clients over HTTP belong to their thread
        with Client(api.protocol, api.address) as own:
            infer(own, user, "one-at-once", file=str(file))

    with ThreadPoolExecutor() as pool:
        running = pool.submit(run)
        assert eventually(file.exists)
        assert "1 requests at once; try again in 1 s" in refusal(api, user, "one-at-once")
        file.unlink()
        running.result(TIMEOUT_SECONDS)

    def is_taken() -> bool:
        try:
            infer(api, user, "one-at-once")
        except InferenceServerException:
            return False
        return True

    assert eventually(is_taken)


def test_compute_time_is_owed_once_it_is_known(client: tuple[Client, str]) -> None:
    api, user = client

    def is_refused() -> bool:
        try:
            infer(api, user, "compute")
        except InferenceServerException as error:
            return "0.0001 compute seconds in 86400 s" in str(error.message())
        return False

    assert eventually(is_refused)


def test_bytes_count_both_ways(client: tuple[Client, str]) -> None:
    api, user = client

    def fill() -> None:
        for _ in range(100):
            infer(api, user, "bytes")

    with pytest.raises(InferenceServerException, match="1000 bytes in 86400 s"):
        fill()


def test_both_protocols_have_one_account(limited: ServerProcess) -> None:
    with Client("http", limited.addresses["http"]) as over_http, Client("grpc", limited.addresses["grpc"]) as over_grpc:
        infer(over_http, "both", "three")
        infer(over_grpc, "both", "three")
        infer(over_http, "both", "three")
        refusal(over_http, "both", "three")
        refusal(over_grpc, "both", "three")


def test_http_says_what_is_left_and_refuses_before_the_body_is_there(limited: ServerProcess) -> None:
    url = f"http://{limited.addresses['http']}/v2/models/held"
    body = {"inputs": [{"name": "FILE", "datatype": "BYTES", "shape": [1], "data": [""]}]}
    with httpx.Client(headers=headers("plain", "three")) as api:
        for path, json, left in (
            ("infer", body, 2),
            ("generate", {"FILE": ""}, 1),
            ("generate_stream", {"FILE": ""}, 0),
        ):
            answer = api.post(f"{url}/{path}", json=json)
            assert (answer.status_code, answer.headers["ratelimit-policy"]) == (200, '"requests";q=3;w=86400')
            assert answer.headers["ratelimit"].startswith(f'"requests";r={left};t=')
        refused = api.post(f"{url}/infer", json=body)
        with httpx.Client(headers=headers("plain", "three")) as other:  # of the other edge process, if there are any
            assert other.post(f"{url}/infer", json=body).status_code == 429
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 28800
    assert refused.headers["ratelimit"].startswith('"requests";r=0;t=')
    host, port = limited.addresses["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as raw:
        key = headers("plain", "three")["authorization"]
        head = (
            f"POST /v2/models/held/infer HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: 60000\r\n\r\n"
        )
        raw.sendall(head.encode() + b"{")
        assert raw.recv(12) == b"HTTP/1.1 429"


def test_grpc_says_when_to_try_again(limited: ServerProcess) -> None:
    with grpc.insecure_channel(limited.addresses["grpc"]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        metadata = tuple(headers("plain", "three").items())  # its requests are used up by the test above, or here
        failed: Any = None
        for _ in range(4):
            with pytest.raises(grpc.RpcError) as caught:  # nothing is in the message, and it is not read when refused
                call(b"", metadata=metadata, timeout=TIMEOUT_SECONDS)
            failed = caught.value
        assert failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(failed.trailing_metadata())
    assert 0 < int(trailers["grpc-retry-pushback-ms"]) <= 28_800_000
    assert trailers["ratelimit-policy"] == '"requests";q=3;w=86400'
    assert trailers["ratelimit"].startswith('"requests";r=0;t=')


def test_each_request_of_a_stream_counts_and_the_stream_goes_on(limited: ServerProcess) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with Client("grpc", limited.addresses["grpc"]) as api:
        api.raw.start_stream(lambda result, error: answers.put(error or result), headers=headers("stream", "three"))
        for number in range(5):
            api.raw.async_stream_infer(
                "held", api.tensors({"FILE": np.array([b""], dtype=object)}), request_id=str(number)
            )
        found = [answers.get(timeout=TIMEOUT_SECONDS) for _ in range(5)]
        api.raw.stop_stream()
    assert [isinstance(each, InferenceServerException) for each in found] == [False] * 3 + [True] * 2
    assert "has reached the limit of quota 'three'" in found[4].message()


def test_a_new_file_gives_more_and_forgets_nothing(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(keys_text("new"))
    with (
        ServerProcess(f"--auth-keys-file={file}", repository=repository) as server,
        Client("http", server.addresses["http"]) as api,
    ):
        for _ in range(3):
            infer(api, "new", "three")
        refusal(api, "new", "three")
        replacement = tmp_path / "new.toml"
        replacement.write_text(keys_text("new", quotas=QUOTAS.replace("limit = 3", "limit = 5")))
        replacement.rename(file)
        server.wait_for_line("has changed; its keys are now")
        for _ in range(2):
            infer(api, "new", "three")
        assert "5 requests in 86400 s" in refusal(api, "new", "three")


@pytest.mark.parametrize("batching", ["", "max_batch_size: 1 dynamic_batching { }"])
def test_keys_with_weights_take_turns(tmp_path: Path, batching: str) -> None:
    """Six requests of one key wait when three of another one come: those are not behind all of them."""
    folder, keys, order, gate = (tmp_path / name for name in ("models", "keys.toml", "order", "gate"))
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "1" / "model.py").write_text(ORDERED)
    (folder / "m" / "config.pbtxt").write_text(CONFIG.replace("count: 2", "count: 1") + batching)
    entry = "[keys.{0}]\nkey = 'the-key-of-{0}-{0}'\nallow = ['all']\n"
    keys.write_text(entry.format("alice") + entry.format("bob") + "weight = 1\n")
    shape = [1, 1] if batching else [1]
    with (
        ServerProcess(f"--auth-keys-file={keys}", repository=folder, environment={"ORDER": str(order)}) as server,
        Client("grpc", server.addresses["grpc"]) as api,
    ):

        def send(user: str, number: int, file: str = "") -> None:
            inputs = api.tensors({"FILE": np.array([file.encode()], dtype=object).reshape(shape)})
            more = {"request_id": f"{user}{number}", "headers": {"authorization": f"Bearer the-key-of-{user}-{user}"}}
            answers.append(api.raw.async_infer("m", inputs, lambda result, error: None, **more))

        def waits(count: int) -> Callable[[], bool]:
            return lambda: waiting() == count

        def waiting() -> float:
            url = f"http://{server.addresses['metrics']}/metrics"
            text = httpx.get(url, headers={"authorization": "Bearer the-key-of-bob-bob"}).text
            return next(
                float(line.split()[-1])
                for line in text.splitlines()
                if line.startswith("nv_inference_pending_request_count{")
            )

        answers: list[Any] = []
        send("alice", 0, str(gate))
        assert eventually(gate.exists)
        for number in range(1, 7):
            send("alice", number)
            assert eventually(waits(number))
        for number in range(3):
            send("bob", number)
            assert eventually(waits(7 + number))
        gate.unlink()
        assert eventually(lambda: len(order.read_text().split()) == 10)
    ran = order.read_text().split()
    assert ran[:5] == ["alice0", "alice1", "bob0", "bob1", "bob2"]
    assert ran[5:] == [f"alice{number}" for number in range(2, 7)]


def test_what_each_key_has_used_is_among_the_metrics(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f"{keys_text('http', 'grpc')}[anonymous]\nallow = ['metrics']\n")
    with ServerProcess(f"--auth-keys-file={file}", repository=repository) as server:
        for protocol in ("http", "grpc"):
            with Client(protocol, server.addresses[protocol]) as api:
                for _ in range(3):
                    infer(api, protocol, "three")
                refusal(api, protocol, "three")

        def value(name: str, **labels: str) -> float:
            return metric(server, f"trioton_key_{name}", **labels)

        def is_three(key: str) -> bool:
            return value("requests_total", key=key) == 3

        for key in ("http-three", "grpc-three"):
            assert eventually(partial(is_three, key))
            assert value("refusals_total", key=key, limit="requests") == 1
            assert value("running_requests", key=key) == 0
            assert value("bytes_total", key=key) > 100
            assert value("compute_seconds_total", key=key) > 0
            assert value("tokens_total", key=key) == 0
        assert value("requests_total", key="http-compute") == 0
