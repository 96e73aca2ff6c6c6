"""Right answers first: each server is asked with NVIDIA's client before it is measured. Between `peers` and `entrants`.

Every way that a row goes is tried. The plain requests are sent a number of times over, so that no server meets its
first request under measurement.
"""

from __future__ import annotations

import queue
from typing import Any
from uuid import uuid4

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, shared_memory

from tests.bench.peers import PeerError, Server
from tests.bench.rows import Port

REPEATS = 20
TIMEOUT_SECONDS = 30.0
LARGE_ELEMENTS = 150_000  # of models/large: 600 kB of FP32
LEFT, RIGHT = np.arange(16, dtype=np.float32).reshape(1, 16), np.full((1, 16), 0.5, np.float32)
LARGE = np.arange(LARGE_ELEMENTS, dtype=np.float32)


def check(server: Server) -> str:
    """Ask both models in every way and return the server's version. Raises PeerError on a wrong answer."""
    for way, ask in (("http", _over_http), ("grpc", _over_grpc)):
        try:
            ask(server)
        except (InferenceServerException, shared_memory.SharedMemoryException, OSError, ValueError) as error:
            raise PeerError(f"{server.peer.name} over {way}: {error}") from error
    with tritonclient.http.InferenceServerClient(server.address("http")) as client:
        return str(client.get_server_metadata()["version"])


def _over_http(server: Server) -> None:
    with tritonclient.http.InferenceServerClient(server.address("http"), network_timeout=TIMEOUT_SECONDS) as client:
        _ask_plainly(server, "http", tritonclient.http, client)
        inputs = [tritonclient.http.InferInput(name, [1, 16], "FP32") for name in ("INPUT0", "INPUT1")]
        for tensor, array in zip(inputs, (LEFT, RIGHT), strict=True):
            tensor.set_data_from_numpy(array, binary_data=False)
        outputs = [tritonclient.http.InferRequestedOutput(name, binary_data=False) for name in ("OUTPUT0", "OUTPUT1")]
        for _ in range(REPEATS):
            _expect_sums(server, "JSON", client.infer("add_sub", inputs, outputs=outputs))


def _over_grpc(server: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(server.address("grpc")) as client:
        _ask_plainly(server, "grpc", tritonclient.grpc, client)
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("add_sub", small_inputs(tritonclient.grpc))
        try:
            result, error = answers.get(timeout=TIMEOUT_SECONDS)
        except queue.Empty:
            raise PeerError(f"{server.peer.name} answers nothing on a gRPC stream") from None
        finally:
            client.stop_stream()
        if error is not None:
            raise error
        _expect_sums(server, "a gRPC stream", result)
        _ask_through_shared_memory(server, client)


def _ask_plainly(server: Server, port: Port, flavour: Any, client: Any) -> None:
    for _ in range(REPEATS):
        _expect_sums(server, port, client.infer("add_sub", small_inputs(flavour)))
        answer = client.infer("large", large_inputs(flavour))
        _expect(server, port, "large", answer.as_numpy("OUTPUT"), LARGE)


def _ask_through_shared_memory(server: Server, client: Any) -> None:
    """The tensor goes in through the first half of a region, and comes back through the second."""
    name, half = f"bench-{uuid4().hex}", LARGE.nbytes
    region = shared_memory.create_shared_memory_region(name, f"/{name}", 2 * half)
    try:
        shared_memory.set_shared_memory_region(region, [LARGE])
        client.register_system_shared_memory(name, f"/{name}", 2 * half)
        tensor = tritonclient.grpc.InferInput("INPUT", [LARGE_ELEMENTS], "FP32")
        tensor.set_shared_memory(name, half)
        wanted = tritonclient.grpc.InferRequestedOutput("OUTPUT")
        wanted.set_shared_memory(name, half, offset=half)
        client.infer("large", [tensor], outputs=[wanted])
        received = shared_memory.get_contents_as_numpy(region, np.float32, [LARGE_ELEMENTS], offset=half)
        _expect(server, "shared memory", "large", received, LARGE)
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(region)


def small_inputs(flavour: Any) -> list[Any]:
    """Of `add_sub`, for `tritonclient.http` or `tritonclient.grpc`."""
    return [_input(flavour, "INPUT0", LEFT), _input(flavour, "INPUT1", RIGHT)]


def large_inputs(flavour: Any) -> list[Any]:
    return [_input(flavour, "INPUT", LARGE)]


def _input(flavour: Any, name: str, array: np.ndarray[Any, Any]) -> Any:
    tensor = flavour.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def _expect_sums(server: Server, way: str, answer: Any) -> None:
    _expect(server, way, "add_sub", answer.as_numpy("OUTPUT0"), LEFT + RIGHT)
    _expect(server, way, "add_sub", answer.as_numpy("OUTPUT1"), LEFT - RIGHT)


def _expect(server: Server, way: str, model: str, received: Any, expected: np.ndarray[Any, Any]) -> None:
    if received is None or not np.array_equal(received, expected):
        raise PeerError(f"{server.peer.name} answers {model} over {way} wrongly: {received}, not {expected}")
