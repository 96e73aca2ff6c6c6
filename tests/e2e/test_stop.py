"""The end of a server, wished for or not: nothing accepted is lost, nothing is left behind."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import grpc as grpcio  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from protocol.grpc.generated.grpc.health.v1 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)
from tests.backends.python.processes import shared_memory_files
from tests.e2e.client import Client, add_sub_inputs, slow_inputs, status_of
from tests.e2e.raw import Answer, infer_json
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import (
    TIMEOUT_SECONDS,
    ServerProcess,
    eventually,
    is_running,
)
from tests.e2e.test_metrics import values

SLOW_INSTANCES = 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models_to_stop")
    add_add_sub(directory / "add_sub", versions=(1,))
    copy_python_model("slow", directory)
    return directory


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def ask_slowly(client: Client, value: int, seconds: float) -> int:
    return int(client.infer("slow", slow_inputs(value, seconds))["VALUE"][0])


def slow_json(value: int, seconds: float) -> object:
    return {
        "inputs": [
            {"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": [seconds]},
            {"name": "VALUE", "datatype": "INT64", "shape": [1], "data": [value]},
        ]
    }


def ask_slowly_by_json(address: str, value: int, seconds: float) -> int:
    """Over a connection of its own: NVIDIA's HTTP client is bound to its thread."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", "/v2/models/slow/infer", json.dumps(slow_json(value, seconds)))
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return int(answer["outputs"][0]["data"][0])
    finally:
        connection.close()


def wait_for_pending(server: ServerProcess, count: int) -> None:
    """Until so many requests to `slow` wait for an instance: then both are busy, and all of these are accepted."""
    assert eventually(lambda: values(server, "slow")["nv_inference_pending_request_count"] == count)


class Load:
    """Threads that ask `add_sub` without pause until they are refused; `outcomes` counts how each request went."""

    def __init__(self, server: ServerProcess, pool: ThreadPoolExecutor) -> None:
        self.outcomes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._grpc = Client("grpc", server.addresses["grpc"])
        self._http_address = server.addresses["http"]
        asks: list[Callable[[], str]] = [self._ask_grpc, self._ask_http] * 3
        self._running: list[Future[None]] = [pool.submit(self._repeat, ask) for ask in asks]

    def wait(self) -> None:
        for future in self._running:
            future.result(TIMEOUT_SECONDS)
        self._grpc.raw.close()

    def _repeat(self, ask: Callable[[], str]) -> None:
        outcome = "right"
        while outcome == "right":
            outcome = ask()
            with self._lock:
                self.outcomes[outcome] += 1

    def _ask_grpc(self) -> str:
        inputs = add_sub_inputs()
        try:
            answer = self._grpc.infer("add_sub", inputs)["OUTPUT0"]
        except InferenceServerException as error:
            return "refused" if status_of(error) == "UNAVAILABLE" else str(error)
        return "right" if np.array_equal(answer, inputs["INPUT0"] + inputs["INPUT1"]) else "wrong"

    def _ask_http(self) -> str:
        connection = http.client.HTTPConnection(self._http_address, timeout=TIMEOUT_SECONDS)
        tensor = {"datatype": "FP32", "shape": [1, 16], "data": [1.5] * 16}
        request = {"inputs": [{"name": name, **tensor} for name in ("INPUT0", "INPUT1")]}
        try:
            connection.request("POST", "/v2/models/add_sub/infer", json.dumps(request))
            response = connection.getresponse()
            answer = json.loads(response.read())
        except ConnectionError:  # never accepted, or closed before the server had read anything
            return "refused"
        finally:
            connection.close()
        if response.status == 503:
            return "refused"
        right = response.status == 200 and answer["outputs"][0]["data"] == [3.0] * 16
        return "right" if right else str(answer)


def test_sigterm_under_load_loses_no_accepted_request(models: Path, threads: ThreadPoolExecutor) -> None:
    """Twelve requests wait or run when the signal comes, over either protocol: all are answered. Those that come
    later are answered or refused, nothing else; the exit code is 0."""
    with ServerProcess(repository=models) as server, Client("grpc", server.addresses["grpc"]) as grpc:
        load = Load(server, threads)
        accepted = [threads.submit(ask_slowly, grpc, value, 0.2) for value in range(6)]
        accepted += [threads.submit(ask_slowly_by_json, server.addresses["http"], value, 0.2) for value in range(6, 12)]
        wait_for_pending(server, 12 - SLOW_INSTANCES)
        server.signal(signal.SIGTERM)
        assert [future.result(TIMEOUT_SECONDS) for future in accepted] == list(range(12))
        load.wait()
        assert server.wait() == 0
    assert load.outcomes["right"] > 0
    assert set(load.outcomes) == {"right", "refused"}, load.outcomes
    assert '"Signal (15) received."' in server.log


class KeptConnections:
    """Clients that ask `add_sub` without pause over connections that they keep, until nobody listens any more. One that
    is told that its connection ends makes a new one. `statuses` counts the answers; `lost` are requests without one."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._address = host, int(port)
        self.statuses: Counter[int] = Counter()
        self.lost: list[Exception] = []
        tensor = {"datatype": "FP32", "shape": [1, 16], "data": [1.5] * 16}
        body = json.dumps({"inputs": [{"name": name, **tensor} for name in ("INPUT0", "INPUT1")]}).encode()
        head = f"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def ask(self) -> None:
        while True:
            try:
                connection = socket.create_connection(self._address, TIMEOUT_SECONDS)
            except OSError:
                return
            with connection, connection.makefile("rb") as answers:
                try:
                    while self._exchange(connection, answers):
                        pass
                except (OSError, ValueError, http.client.HTTPException) as error:
                    self.lost.append(error)
                    return

    def _exchange(self, connection: socket.socket, answers: BinaryIO) -> bool:
        """Returns whether the connection goes on."""
        connection.sendall(self._request)
        status = int(answers.readline().split()[1])
        headers = http.client.parse_headers(answers)
        answers.read(int(headers["content-length"]))
        self.statuses[status] += 1
        return headers.get("connection") != "close"


@pytest.mark.parametrize("drain", [0, 1])
def test_busy_clients_lose_no_request(models: Path, threads: ThreadPoolExecutor, drain: int) -> None:
    """Whoever keeps a connection is told in good time that it ends; what was sent before that is answered."""
    with ServerProcess(f"--drain-secs={drain}", repository=models) as server:
        clients = KeptConnections(server.addresses["http"])
        running = [threads.submit(clients.ask) for _ in range(16)]
        assert eventually(lambda: clients.statuses[200] > 5000)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        for future in running:
            future.result(TIMEOUT_SECONDS)
    assert not clients.lost, (clients.lost, clients.statuses)
    assert set(clients.statuses) <= {200, 503}


def get(address: str, path: str) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def is_healthy(address: str) -> bool:
    """As a load balancer asks (`grpc.health.v1`)."""
    with grpcio.insecure_channel(address) as channel:
        ask = channel.unary_unary("/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, None)
        answer = HealthCheckResponse.parse(ask(HealthCheckRequest(), timeout=TIMEOUT_SECONDS))
    return answer.status is HealthCheckResponseServingStatus.SERVING


def test_while_it_drains_it_is_not_ready_and_answers(models: Path, threads: ThreadPoolExecutor) -> None:
    """Readiness is off by each way to ask for it; whoever still comes is served, until a second signal."""
    with ServerProcess("--drain-secs=1000", repository=models) as server:
        http_address, grpc_address = server.addresses["http"], server.addresses["grpc"]
        asked = ("/v2/health/ready", "/v2/models/add_sub/ready", "/v2/health/live")
        assert [get(http_address, path) for path in asked] == [200, 200, 200]
        assert is_healthy(grpc_address)
        load = Load(server, threads)
        server.signal(signal.SIGTERM)
        server.wait_for_line("not ready any more")
        before = load.outcomes["right"]
        assert [get(http_address, path) for path in asked] == [503, 503, 200]
        assert not is_healthy(grpc_address)
        with Client("grpc", grpc_address) as client:
            with pytest.raises(InferenceServerException, match="Server exiting") as refused:
                client.raw.is_server_ready()
            assert status_of(refused.value) == "UNAVAILABLE"
            assert ask_slowly(client, 5, 0) == 5
        assert ask_slowly_by_json(http_address, 6, 0) == 6
        assert get(server.addresses["metrics"], "/metrics") == 200
        assert eventually(lambda: load.outcomes["right"] >= before + 100)
        assert set(load.outcomes) == {"right"}, load.outcomes
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        load.wait()


def test_after_draining_it_ends_by_itself(models: Path, threads: ThreadPoolExecutor) -> None:
    """What was accepted while it drained is answered, also when that takes longer; then the exit code is 0."""
    with ServerProcess("--drain-secs=1", repository=models) as server, Client("grpc", server.addresses["grpc"]) as grpc:
        load = Load(server, threads)
        server.signal(signal.SIGTERM)
        server.wait_for_line("not ready any more")
        accepted = [threads.submit(ask_slowly, grpc, value, 1.0) for value in range(3)]
        assert [future.result(TIMEOUT_SECONDS) for future in accepted] == [0, 1, 2]
        load.wait()
        assert server.wait() == 0
    assert set(load.outcomes) == {"right", "refused"}, load.outcomes


def test_new_work_is_refused_while_what_was_accepted_ends(models: Path, threads: ThreadPoolExecutor) -> None:
    """By an answer that says so; the log tells what is waited for, and metrics are there as long as the server is."""
    with ServerProcess(repository=models) as server, Client("grpc", server.addresses["grpc"]) as client:
        accepted = [threads.submit(ask_slowly, client, value, 3.0) for value in range(3)]
        wait_for_pending(server, 3 - SLOW_INSTANCES)
        server.signal(signal.SIGTERM)
        server.wait_for_line(r"Model 'slow' \(version 1\) has 3 in-flight inferences")
        with pytest.raises(InferenceServerException, match="Server exiting") as refused:
            ask_slowly(client, 2, 0)
        assert status_of(refused.value) == "UNAVAILABLE"
        assert get(server.addresses["http"], "/v2/health/ready") == 503
        assert infer_json(server.addresses["http"], "slow", slow_json(0, 0)) == Answer(503, "Server exiting")
        assert get(server.addresses["metrics"], "/metrics") == 200
        assert [future.result(TIMEOUT_SECONDS) for future in accepted] == [0, 1, 2]
        assert server.wait() == 0


ADDER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            value = int(request.inputs()[0].as_numpy()[0])
            total = self.totals.get(request.correlation_id(), 0) + value
            self.totals[request.correlation_id()] = total
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", np.array([total]))]))
        return responses
"""


def add_adder(repository: Path, *, idle_microseconds: int) -> None:
    """A model with sequences: each adds up what it is given."""
    (repository / "adder" / "1").mkdir(parents=True)
    (repository / "adder" / "1" / "model.py").write_text(ADDER)
    (repository / "adder" / "config.pbtxt").write_text(
        f'backend: "python" sequence_batching {{ max_sequence_idle_microseconds: {idle_microseconds} }}\n'
        'input [ { name: "VALUE" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
        'output [ { name: "TOTAL" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
    )


def add_up(client: Client, value: int, **more: Any) -> int:
    return int(client.infer("adder", {"VALUE": np.array([value], np.int64)}, **more)["TOTAL"][0])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_open_sequences_are_finished(tmp_path: Path, protocol: str) -> None:
    """Requests that continue them are taken as long as they are open, others are not."""
    add_adder(tmp_path, idle_microseconds=1_000_000_000)
    with ServerProcess(repository=tmp_path) as server, Client(protocol, server.addresses[protocol]) as client:
        assert add_up(client, 1, sequence_id=7, sequence_start=True) == 1
        server.signal(signal.SIGTERM)
        server.wait_for_line(r"Model 'adder' \(version 1\) has 1 open sequences")
        assert add_up(client, 2, sequence_id=7) == 3
        for id, starts in ((8, True), (8, False), (7, True)):
            with pytest.raises(InferenceServerException, match="Server exiting") as refused:
                add_up(client, 5, sequence_id=id, sequence_start=starts)
            assert status_of(refused.value) == "UNAVAILABLE"
        assert add_up(client, 3, sequence_id=7, sequence_end=True) == 6
        assert server.wait() == 0


def test_sequences_that_nobody_goes_on_with(tmp_path: Path) -> None:
    """They end when they have been idle for long enough, or are cut off with the rest."""
    for idle, code in ((200_000, 0), (1_000_000_000, 1)):
        repository = tmp_path / str(idle)
        add_adder(repository, idle_microseconds=idle)
        timeout = f"--exit-timeout-secs={TIMEOUT_SECONDS if code == 0 else 1:.0f}"
        with (
            ServerProcess(timeout, repository=repository) as server,
            Client("grpc", server.addresses["grpc"]) as client,
        ):
            assert add_up(client, 1, sequence_id=7, sequence_start=True) == 1
            server.signal(signal.SIGTERM)
            assert server.wait() == code
        assert ("Exiting immediately. 1 inferences were cut off." in server.log) == bool(code)


def test_ctrl_c_in_a_terminal(models: Path, threads: ThreadPoolExecutor) -> None:
    """The signal goes to the workers, too: they do not take it, finish, and end with their server. No traceback."""
    with ServerProcess(repository=models) as server, Client("grpc", server.addresses["grpc"]) as grpc:
        accepted = [threads.submit(ask_slowly, grpc, value, 0.5) for value in range(3)]
        wait_for_pending(server, 3 - SLOW_INSTANCES)
        workers = server.descendants()
        os.killpg(server.pid, signal.SIGINT)
        assert [future.result(TIMEOUT_SECONDS) for future in accepted] == [0, 1, 2]
        assert server.wait() == 0
    assert len(workers) >= SLOW_INSTANCES
    assert eventually(lambda: not any(map(is_running, workers)))
    assert "Traceback" not in server.log


def test_idle_clients_do_not_delay_the_end(models: Path) -> None:
    """A kept connection, a channel and a stream, all without a request under way: the server waits for none."""
    timeout = 1000  # far longer than the test may take
    with ServerProcess(f"--exit-timeout-secs={timeout}", repository=models) as server:
        kept = http.client.HTTPConnection(server.addresses["http"], timeout=TIMEOUT_SECONDS)
        kept.request("GET", "/v2/health/live")
        assert kept.getresponse().read() == b'{"live":true}'
        answers: queue.Queue[object] = queue.Queue()
        with Client("grpc", server.addresses["grpc"]) as grpc:
            grpc.raw.start_stream(lambda result, error: answers.put(error or result.get_response().id))
            grpc.raw.async_stream_infer("add_sub", grpc.tensors(add_sub_inputs()), request_id="first")
            assert answers.get(timeout=TIMEOUT_SECONDS) == "first"
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        kept.close()


@pytest.mark.parametrize("again", [False, True], ids=["timeout", "second signal"])
def test_an_end_that_does_not_wait(models: Path, threads: ThreadPoolExecutor, again: bool) -> None:
    """When the exit timeout has passed, or at a second signal, the server ends with 1 and takes its workers along."""
    timeout = "1000" if again else "0"
    with (
        ServerProcess(f"--exit-timeout-secs={timeout}", repository=models) as server,
        Client("grpc", server.addresses["grpc"]) as grpc,
    ):
        pending = [threads.submit(ask_slowly, grpc, value, 1000) for value in range(3)]
        wait_for_pending(server, 3 - SLOW_INSTANCES)
        workers = server.descendants()
        server.signal(signal.SIGINT)
        server.wait_for_line(r'"Signal \(2\) received\."')
        if again:
            server.signal(signal.SIGINT)
        assert server.wait() == 1
        for future in pending:
            error = future.exception(TIMEOUT_SECONDS)
            assert isinstance(error, InferenceServerException)
            assert status_of(error) in ("UNAVAILABLE", "CANCELLED")
    assert "Exiting immediately." in server.log
    assert again or "Exiting immediately. 3 inferences were cut off." in server.log
    assert eventually(lambda: not any(map(is_running, workers)))


def test_kill_9_leaves_nothing(models: Path, threads: ThreadPoolExecutor) -> None:
    """No worker process and no shared memory outlives a server that could not clean up."""
    with ServerProcess(repository=models) as server, Client("grpc", server.addresses["grpc"]) as grpc:
        pending = [threads.submit(ask_slowly, grpc, value, 1000) for value in range(3)]
        wait_for_pending(server, 3 - SLOW_INSTANCES)
        workers = server.descendants()
        segments = shared_memory_files(server.pid, *workers)
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        for future in pending:
            assert isinstance(future.exception(TIMEOUT_SECONDS), InferenceServerException)
    assert len(workers) >= SLOW_INSTANCES
    assert eventually(lambda: not any(map(is_running, workers)))
    assert not [file for file in segments if file.exists()]
