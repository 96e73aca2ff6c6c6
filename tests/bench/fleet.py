"""What a fleet costs a request: `python -m tests.bench.fleet`. Needs HAProxy. Part of `make bench`.

One client asks the same model one request at a time, in turns: a replica directly, through a fleet whose HAProxy only
balances (`--sequences-from=header`), and through one that also looks for the id of a sequence in every request.
"""

from __future__ import annotations

import argparse
import http.client
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

from tests.bench.table import table
from tests.e2e.client import Client, tensors
from tests.e2e.fleet_process import HAPROXY, FleetProcess
from tests.e2e.repository import add_add_sub

MODEL = "add_sub"
ONES = np.ones((1, 16), np.float32)
INPUTS = {"INPUT0": ONES, "INPUT1": ONES}
WAYS = ("direct", "through HAProxy", "through the fleet")
KINDS = ("HTTP", "gRPC", "message of a stream")
Times = dict[tuple[str, str], list[float]]


@contextmanager
def http_call(address: str) -> Iterator[Callable[[], None]]:
    made = []
    for name, array in INPUTS.items():
        tensor = InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    body, length = InferenceServerClient.generate_request_body(made)
    headers = {"Inference-Header-Content-Length": str(length)}
    connection = http.client.HTTPConnection(address)

    def call() -> None:
        connection.request("POST", f"/v2/models/{MODEL}/infer", body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

    yield call
    connection.close()


@contextmanager
def grpc_call(address: str) -> Iterator[Callable[[], None]]:
    with Client("grpc", address) as client:
        inputs = client.tensors(INPUTS)
        yield lambda: client.raw.infer(MODEL, inputs)


@contextmanager
def stream_call(address: str) -> Iterator[Callable[[], None]]:
    answers: queue.Queue[Any] = queue.Queue()
    with Client("grpc", address) as client:
        inputs = tensors(client.api, INPUTS)
        client.raw.start_stream(lambda result, error: answers.put(error))

        def call() -> None:
            client.raw.async_stream_infer(MODEL, inputs)
            error = answers.get(timeout=60)
            assert error is None, error

        yield call
        client.raw.stop_stream()


CALLS = {"HTTP": http_call, "gRPC": grpc_call, "message of a stream": stream_call}


def measure(rounds: int, calls: int) -> Times:
    """Seconds of each call, by its kind and way."""
    times: Times = {(kind, way): [] for kind in KINDS for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        add_add_sub(Path(folder) / MODEL, versions=(1,))
        plain = stack.enter_context(FleetProcess(Path(folder), "--replicas=2", "--sequences-from=header"))
        whole = stack.enter_context(FleetProcess(Path(folder), "--replicas=2"))
        replica = whole.wait_for_replicas(2)[0]
        plain.wait_for_replicas(2)
        for kind in KINDS:
            word = "http" if kind == "HTTP" else "grpc"
            addresses = (replica[word], plain.addresses[word], whole.addresses[word])
            ways = {way: stack.enter_context(CALLS[kind](at)) for way, at in zip(WAYS, addresses, strict=True)}
            for call in ways.values():
                repeat(call, calls)
            for _ in range(rounds):
                for way, call in ways.items():
                    times[kind, way] += repeat(call, calls)
    return times


def repeat(call: Callable[[], None], calls: int) -> list[float]:
    found = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def report(times: Times) -> str:
    """Milliseconds: the 10th percentile, and the median."""
    rows = [[kind, *(cell(times[kind, way]) for way in WAYS)] for kind in KINDS]
    return table(["p10 / p50, ms", *WAYS], rows, text_columns=1)


def cell(seconds: Sequence[float]) -> str:
    tenths = quantiles(seconds, n=10)
    return f"{tenths[0] * 1000:.2f} / {tenths[4] * 1000:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=200, help="of each way in each round")
    given = parser.parse_args(arguments)
    if HAPROXY is None:
        print("error: there is no haproxy; on Debian, as root: apt-get install haproxy", file=sys.stderr)
        return 1
    print(report(measure(given.rounds, given.calls)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
