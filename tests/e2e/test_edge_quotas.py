"""Quotas and traces of a server with edge processes: what one takes along when it dies, and what holds over all."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import httpx
import pytest
from tritonclient.grpc import service_pb2

from tests.e2e.edge_processes import edges_of, metric
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_edge_access import HELD, bearer
from tests.e2e.test_edge_processes import ECHO, ECHO_CONFIG

pytestmark = pytest.mark.slow
ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"
PATH = "/v2/models/{}/infer"
BODY = json.dumps({"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}).encode()
PLACES = 4
RATE = 10


def put_keys(file: Path, requests: int = 100) -> None:
    """At once, as a reader sees it. Alice has places, Bob a number of requests in a day."""
    new = file.with_suffix(".new")
    new.write_text(
        f"[quotas.places]\nconcurrent_requests = {PLACES}\n"
        f"[quotas.day]\nrequests = {{ limit = {requests}, seconds = 86400 }}\n"
        f"[keys.alice]\nkey = '{ALICE}'\nallow = ['inference']\nquota = 'places'\n"
        f"[keys.bob]\nkey = '{BOB}'\nallow = ['inference']\nquota = 'day'\n"
        "[anonymous]\nallow = ['metrics', 'health']\n"
    )
    new.replace(file)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    for name, code in (("echo", ECHO), ("held", HELD.replace("GATE", repr(str(tmp_path / "gate"))))):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / "model.py").write_text(code)
        (tmp_path / "models" / name / "config.pbtxt").write_text(
            ECHO_CONFIG if name == "echo" else ECHO_CONFIG.replace('"OUT"', '"IN"')
        )
    put_keys(tmp_path / "keys.toml")
    flags = (
        "--edge-processes=2",
        f"--auth-keys-file={tmp_path / 'keys.toml'}",
        f"--trace-config=triton,file={tmp_path / 'trace.json'}",
        "--trace-config=level=TIMESTAMPS",
        f"--trace-config=rate={RATE}",
    )
    with ServerProcess(*flags, repository=tmp_path / "models") as started:
        assert len(started.addresses) == 3
        yield started


def ask(server: ServerProcess, key: str, model: str = "echo", outcomes: list[int] | None = None) -> int:
    """One request on a connection of its own; the status, 0 where the connection is lost."""
    try:
        url = f"http://{server.addresses['http']}{PATH.format(model)}"
        status = httpx.post(url, content=BODY, headers=bearer(key), timeout=60).status_code
    except httpx.HTTPError:
        status = 0
    if outcomes is not None:
        outcomes.append(status)
    return status


def running(server: ServerProcess) -> float:
    return metric(server, "trioton_key_running_requests", key="alice")


def test_places_of_an_edge_that_is_killed_are_free_within_a_second(server: ServerProcess, tmp_path: Path) -> None:
    outcomes: list[int] = []
    threads = [threading.Thread(target=ask, args=(server, ALICE, "held", outcomes)) for _ in range(PLACES)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: running(server) == PLACES)
    assert eventually(lambda: ask(server, ALICE) == 429)
    os.kill(edges_of(server)[1], signal.SIGKILL)
    killed = time.monotonic()
    statuses: list[int] = []
    while time.monotonic() < killed + 30 and 200 not in statuses:
        statuses.append(ask(server, ALICE))
    took = time.monotonic() - killed
    assert statuses[-1] == 200, statuses
    print(f"a place was free after {took * 1000:.0f} ms")
    (tmp_path / "gate").touch()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {0: PLACES // 2, 200: PLACES // 2}
    assert eventually(lambda: running(server) == 0)
    outcomes.clear()
    (tmp_path / "gate").unlink()
    threads = [threading.Thread(target=ask, args=(server, ALICE, "held", outcomes)) for _ in range(PLACES + 3)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(outcomes) == 3)
    (tmp_path / "gate").touch()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {429: 3, 200: PLACES}


def test_a_number_of_requests_is_exact_under_load_and_when_it_changes(server: ServerProcess, tmp_path: Path) -> None:
    """By many clients over both protocols, and as soon as the server says that other keys are in force."""
    allowed: Counter[bool] = Counter()
    lock = threading.Lock()
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(8)])
    request.inputs.add(name="IN", datatype="FP32", shape=[2])

    def over_http(over: threading.Event) -> None:
        url = f"http://{server.addresses['http']}{PATH.format('echo')}"
        with httpx.Client(headers=bearer(BOB), timeout=60) as client:
            while not over.is_set():
                status = client.post(url, content=BODY).status_code
                assert status in (200, 429)
                with lock:
                    allowed[status == 200] += 1

    def over_grpc(over: threading.Event) -> None:
        with grpc.insecure_channel(server.addresses["grpc"]) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            )
            while not over.is_set():
                answer = call.future(request, metadata=tuple(bearer(BOB).items()), timeout=60)
                assert answer.code() in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
                with lock:
                    allowed[answer.code() is grpc.StatusCode.OK] += 1

    over = threading.Event()
    threads = [threading.Thread(target=run, args=(over,)) for run in (over_http, over_grpc) * 3]
    for thread in threads:
        thread.start()
    assert eventually(lambda: allowed[False] > 50)
    assert allowed[True] == 100
    put_keys(tmp_path / "keys.toml", requests=150)
    refused = allowed[False]
    assert eventually(lambda: allowed[True] == 150)
    assert eventually(lambda: allowed[False] > refused + 50)
    over.set()
    for thread in threads:
        thread.join()
    # What a quota gives back in the time that the test has taken is less than one.
    assert allowed[True] == 150


def test_one_in_so_many_requests_over_all_edges_is_traced(server: ServerProcess, tmp_path: Path) -> None:
    put_keys(tmp_path / "keys.toml", requests=100_000)
    url = f"http://{server.addresses['http']}{PATH.format('echo')}"
    clients = [httpx.Client(headers=bearer(BOB), timeout=60) for _ in range(4)]
    server.wait_for_line("has changed; its keys are now")
    for number in range(20 * RATE):
        assert clients[number % 4].post(url, content=BODY).status_code == 200
    for client in clients:
        client.close()

    def traces() -> list[str]:
        try:
            entries = json.loads((tmp_path / "trace.json").read_text())
        except (OSError, ValueError):
            return []
        return [" ".join(stamp["name"] for stamp in each["timestamps"]) for each in entries if "timestamps" in each]

    assert eventually(lambda: len(traces()) == 20)
    for found in traces():
        assert found.startswith("HTTP_RECV_START HTTP_RECV_END REQUEST_START QUEUE_START")
        assert found.endswith("HTTP_SEND_START HTTP_SEND_END")
