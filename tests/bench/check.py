"""Right answers first: each server is asked with NVIDIA's client before it is measured. Between `peers` and `contest`.

The requests are sent a number of times over, so that no server meets its first request under measurement.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.bench.peers import PeerError, Server
from tests.bench.rows import Port

REPEATS = 20
TIMEOUT_SECONDS = 30.0
LARGE_ELEMENTS = 150_000  # of models/large: 600 kB of FP32


def check(server: Server) -> str:
    """Ask both models over both protocols and return the server's version. Raises PeerError on a wrong answer."""
    for protocol in ("http", "grpc"):
        try:
            _check_protocol(server, protocol)
        except (InferenceServerException, OSError, ValueError) as error:
            raise PeerError(f"{server.peer.name} over {protocol}: {error}") from error
    with tritonclient.http.InferenceServerClient(server.address("http")) as client:
        return str(client.get_server_metadata()["version"])


def _check_protocol(server: Server, protocol: Port) -> None:
    flavour: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
    options = {"network_timeout": TIMEOUT_SECONDS} if protocol == "http" else {}
    left, right = np.arange(16, dtype=np.float32).reshape(1, 16), np.full((1, 16), 0.5, np.float32)
    large = np.arange(LARGE_ELEMENTS, dtype=np.float32)
    with flavour.InferenceServerClient(server.address(protocol), **options) as client:
        for _ in range(REPEATS):
            answer = client.infer("add_sub", [_input(flavour, "INPUT0", left), _input(flavour, "INPUT1", right)])
            _expect(server, protocol, "add_sub", answer.as_numpy("OUTPUT0"), left + right)
            _expect(server, protocol, "add_sub", answer.as_numpy("OUTPUT1"), left - right)
            answer = client.infer("large", [_input(flavour, "INPUT", large)])
            _expect(server, protocol, "large", answer.as_numpy("OUTPUT"), large)


def _input(flavour: Any, name: str, array: np.ndarray[Any, Any]) -> Any:
    tensor = flavour.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def _expect(server: Server, protocol: Port, model: str, received: Any, expected: np.ndarray[Any, Any]) -> None:
    if received is None or not np.array_equal(received, expected):
        raise PeerError(f"{server.peer.name} answers {model} over {protocol} wrongly: {received}, not {expected}")
