"""A worker process that is killed in the middle of a batch: contained, told, mended."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, status_of
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually, is_running

LIVE = {"ACTION": np.array([b"live"], np.object_)}
DIE = {"ACTION": np.array([b"die"], np.object_)}


def test_a_worker_that_dies_in_a_batch(client: Client, server: ServerProcess) -> None:
    """Its caller is told UNAVAILABLE, the next one waits for a new process, others serve."""
    assert eventually(lambda: client.is_ready("fragile"))
    pid = int(client.infer("fragile", LIVE)["PID"][0])
    assert pid in server.descendants()

    with pytest.raises(InferenceServerException, match="fragile") as raised:
        client.infer("fragile", DIE)
    assert status_of(raised.value) == "UNAVAILABLE"
    successor = int(client.infer("fragile", LIVE)["PID"][0])
    assert successor != pid
    assert client.infer("add_sub", add_sub_inputs())["OUTPUT0"].shape == (1, 16)

    assert eventually(lambda: client.is_ready("fragile"))
    assert client.raw.is_server_ready() is True
    assert int(client.infer("fragile", LIVE)["PID"][0]) == successor
    assert eventually(lambda: not is_running(pid))
    assert successor in server.descendants()


def test_workers_that_are_killed_under_load_cost_no_more_than_the_batches_they_had(
    server: ServerProcess,
) -> None:
    """One batch for each kill; whoever else asks waits for the next worker and is answered."""
    threads, kills = 4, 6
    is_over = threading.Event()
    failures: list[str] = []
    answered: list[int] = []

    def ask() -> None:
        with Client("grpc", server.addresses["grpc"]) as own:
            while not is_over.is_set():
                try:
                    answered.append(int(own.infer("fragile", LIVE)["PID"][0]))
                except InferenceServerException as error:
                    failures.append(f"{status_of(error)} {error.message()}")

    with ThreadPoolExecutor(threads) as pool:
        done = [pool.submit(ask) for _ in range(threads)]
        killed = {0}
        for _ in range(kills):
            assert eventually(lambda: bool(answered) and answered[-1] not in killed)
            killed.add(answered[-1])
            os.kill(answered[-1], signal.SIGKILL)
        assert eventually(lambda: answered[-1] not in killed)
        is_over.set()
        for each in done:
            each.result(TIMEOUT_SECONDS)
    assert len(failures) <= threads * kills
    assert all(text.startswith("UNAVAILABLE") and "was killed by SIGKILL" in text for text in failures), failures
