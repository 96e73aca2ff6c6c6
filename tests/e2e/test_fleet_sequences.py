"""Sequences through a fleet: each stays whole, however its id is given, while replicas come and go."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Array, Client, tensors
from tests.e2e.fleet_process import FleetProcess, needs_haproxy
from tests.e2e.server_process import eventually
from tests.e2e.test_sequence import IDLE_MICROSECONDS, ZEROS, add_summing

pytestmark = needs_haproxy

SEQUENCES, STEPS = 24, 5
# More than 2^53, which not every reader of JSON gets right.
FIRST_ID = 2**62 + 1
STEP = np.ones((1, 2), np.int32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("fleet_sequences")
    for name, kind in (("sums", "UINT64"), ("named", "STRING")):
        batching = (
            f"oldest {{ max_candidate_sequences: 64 }} max_sequence_idle_microseconds: {IDLE_MICROSECONDS} {ZEROS}"
        )
        add_summing(repository / name, id_type=kind, batching=batching)
    return repository


@pytest.fixture(scope="module")
def fleet(models: Path) -> Iterator[FleetProcess]:
    with FleetProcess(models, "--replicas=2", "--slow-start-secs=0", "--drain-timeout-secs=120") as process:
        yield process


class Steps:
    """Runs one step of a sequence; answers the sum."""

    def __init__(self, client: Client, model: str = "sums") -> None:
        self.client, self.model = client, model

    def __call__(self, id: int | str, *, start: bool = False, end: bool = False) -> int:
        more: dict[str, Any] = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
        return total(self.client.infer(self.model, {"INPUT": STEP}, **more))


def total(outputs: dict[str, Array]) -> int:
    return int(outputs["OUTPUT"][0, 0])


def run_all(steps: Callable[..., int], ids: list[Any]) -> None:
    """All of them, step by step in turns, so that every sequence is open while the others go on."""
    for step in range(1, STEPS + 1):
        for id in ids:
            assert steps(id, start=step == 1, end=step == STEPS) == step


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["sums", "named"])
def test_sequences_are_whole_by_what_requests_say(fleet: FleetProcess, protocol: str, model: str) -> None:
    ids: list[Any] = [FIRST_ID + i if model == "sums" else f"a name, {i}" for i in range(SEQUENCES)]
    with Client(protocol, fleet.addresses[protocol]) as client:
        run_all(Steps(client, model), ids)


def test_both_protocols_find_the_same_sequence(fleet: FleetProcess) -> None:
    with Client("http", fleet.addresses["http"]) as http, Client("grpc", fleet.addresses["grpc"]) as grpc:
        by_http, by_grpc = Steps(http), Steps(grpc)
        for id in range(100, 100 + SEQUENCES):
            assert by_http(id, start=True) == 1
            assert by_grpc(id) == 2
            assert by_http(id, end=True) == 3


def test_json_alone_has_the_id_wherever_it_stands(fleet: FleetProcess) -> None:
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 2], "data": [1, 1]}

    def step(id: int, *, start: bool, end: bool) -> int:
        parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        with urllib.request.urlopen(f"http://{fleet.addresses['http']}/v2/models/sums/infer", body) as answer:
            outputs = json.loads(answer.read())["outputs"]
        return int(next(each["data"][0] for each in outputs if each["name"] == "OUTPUT"))

    run_all(step, [*range(200, 200 + SEQUENCES)])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_header_says_it(fleet: FleetProcess, protocol: str) -> None:
    with Client(protocol, fleet.addresses[protocol]) as client:

        def step(id: int, *, start: bool, end: bool) -> int:
            more: dict[str, Any] = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
            return total(client.infer("sums", {"INPUT": STEP}, headers={"x-sequence-id": str(id)}, **more))

        run_all(step, [*range(300, 300 + SEQUENCES)])


class StreamedSteps:
    """As `Steps`, each step on a stream of its own, so that each must find the replica by itself."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, id: int, *, start: bool = False, end: bool = False) -> int:
        answers: queue.Queue[Any] = queue.Queue()
        with Client("grpc", self.address) as client:
            client.raw.start_stream(lambda result, error: answers.put(error or result))
            client.raw.async_stream_infer(
                "sums",
                tensors(client.api, {"INPUT": STEP}),
                sequence_id=id,
                sequence_start=start,
                sequence_end=end,
            )
            answer = answers.get(timeout=60)
            client.raw.stop_stream()
        if isinstance(answer, Exception):
            raise answer
        return int(answer.as_numpy("OUTPUT")[0, 0])


def test_streams_find_their_sequences(fleet: FleetProcess) -> None:
    run_all(StreamedSteps(fleet.addresses["grpc"]), [*range(400, 400 + SEQUENCES)])


def test_a_stream_that_waits_for_its_first_request_is_not_refused(fleet: FleetProcess) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with Client("grpc", fleet.addresses["grpc"]) as client:
        client.raw.start_stream(lambda result, error: answers.put(error or result))
        threading.Event().wait(0.5)
        for step in range(1, 4):
            client.raw.async_stream_infer(
                "sums",
                tensors(client.api, {"INPUT": STEP}),
                sequence_id=500,
                sequence_start=step == 1,
                sequence_end=step == 3,
            )
            assert int(answers.get(timeout=60).as_numpy("OUTPUT")[0, 0]) == step
        client.raw.stop_stream()


@pytest.mark.slow
def test_sequences_are_whole_while_replicas_come_and_go(fleet: FleetProcess) -> None:
    ids = [*range(600, 600 + SEQUENCES)]
    with Client("http", fleet.addresses["http"]) as client:
        steps = Steps(client)
        for id in ids:
            assert steps(id, start=True) == 1
        fleet.call("POST", "/v2/fleet/scale", {"replicas": 4})
        fleet.wait_for_replicas(4)
        for id in ids:
            assert steps(id) == 2
        more = [*range(700, 700 + SEQUENCES)]
        for id in more:
            assert steps(id, start=True) == 1
        fleet.call("POST", "/v2/fleet/scale", {"replicas": 1})
        assert eventually(lambda: len(fleet.replicas("draining")) == 3)
        for step in (3, 4):
            for id in ids:
                assert steps(id, end=step == 4) == step
        for id in more:
            assert steps(id, end=True) == 2
        fleet.wait_for_replicas(1)
        assert "has requests, streams or sequences after" not in fleet.log
        fleet.call("POST", "/v2/fleet/scale", {"replicas": 2})
        fleet.wait_for_replicas(2)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_is_told_when_the_replica_of_its_sequence_has_died(fleet: FleetProcess, protocol: str) -> None:
    first = 800 if protocol == "http" else 900  # ids that no replica has seen
    ids = [*range(first, first + SEQUENCES)]
    with Client(protocol, fleet.addresses[protocol]) as client:
        steps = Steps(client)
        for id in ids:
            assert steps(id, start=True) == 1
        name, pid = next(iter(fleet.pids().items()))
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: name not in fleet.pids())
        whole, told = 0, 0
        for id in ids:
            try:
                assert steps(id, end=True) == 2
                whole += 1
            except InferenceServerException as error:
                told += "must specify the START flag" in str(error)
        assert whole + told == SEQUENCES
        assert min(whole, told) > 0
    fleet.wait_for_replicas(2)
