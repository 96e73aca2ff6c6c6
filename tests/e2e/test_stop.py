"""The end of a server, wished for or not: nothing accepted is lost, nothing is left behind."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, slow_inputs, status_of
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import (
    TIMEOUT_SECONDS,
    ServerProcess,
    eventually,
    is_running,
    shared_memory_files,
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


def ask_slowly_by_json(address: str, value: int, seconds: float) -> int:
    """Over a connection of its own: NVIDIA's HTTP client is bound to its thread."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    request = {
        "inputs": [
            {"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": [seconds]},
            {"name": "VALUE", "datatype": "INT64", "shape": [1], "data": [value]},
        ]
    }
    try:
        connection.request("POST", "/v2/models/slow/infer", json.dumps(request))
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
        assert kept.getresponse().read() == b""
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
    assert eventually(lambda: not any(map(is_running, workers)))


def test_kill_9_leaves_nothing(models: Path, threads: ThreadPoolExecutor) -> None:
    """No worker process and no shared memory outlives a server that could not clean up."""
    with ServerProcess(repository=models) as server, Client("grpc", server.addresses["grpc"]) as grpc:
        pending = [threads.submit(ask_slowly, grpc, value, 1000) for value in range(3)]
        wait_for_pending(server, 3 - SLOW_INSTANCES)
        workers = server.descendants()
        segments = {file for pid in (server.pid, *workers) for file in shared_memory_files(pid)}
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        for future in pending:
            assert isinstance(future.exception(TIMEOUT_SECONDS), InferenceServerException)
    assert len(workers) >= SLOW_INSTANCES
    assert eventually(lambda: not any(map(is_running, workers)))
    assert not [file for file in segments if file.exists()]
