"""A worker process that is killed in the middle of a batch: contained, told, mended."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, status_of
from tests.e2e.server_process import ServerProcess, eventually, is_running

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
