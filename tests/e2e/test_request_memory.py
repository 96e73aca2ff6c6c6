"""The bound on what request bodies hold, which both protocols share."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, status_of
from tests.e2e.repository import add_types
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually
from tests.e2e.test_batching import metric

LIMIT = 3_000_000
# Half of it, in a type without an encoding of its own.
TENSOR = np.zeros(1_500_000, np.uint8)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("small")
    add_types(repository / "bytes", ("UINT8",))
    with ServerProcess(f"--max-request-memory={LIMIT}", repository=repository) as process:
        yield process


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_body_that_does_not_come_to_its_end_holds_what_has_come(small: ServerProcess, protocol: str) -> None:
    """A request over either protocol is then refused and counted, and taken when the other one has gone."""
    host, port = small.addresses["http"].split(":")
    head = b"POST /v2/models/bytes/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 2\r\n"
    with Client(protocol, small.addresses[protocol]) as client:

        def infer() -> None:
            assert client.infer("bytes", {"IN_UINT8": TENSOR})["UINT8"].size == TENSOR.size

        def is_taken() -> bool:
            try:
                infer()
            except InferenceServerException as error:
                refusals.append((status_of(error), str(error.message())))
                return False
            return True

        refusals: list[tuple[str, str]] = []
        infer()
        while not refusals:  # where the two meet, the holder may be the one that is refused
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as holder:
                holder.sendall(head + b"Content-Length: 2900000\r\n\r\n" + bytes(2_800_000))
                while is_taken() and not select.select([holder], [], [], 0)[0]:
                    pass
        assert metric(small, "trioton_limit_refusals_total", protocol=protocol, limit="max_request_memory") >= 1
        assert eventually(is_taken)
    status = {"http": "UNAVAILABLE", "grpc": "RESOURCE_EXHAUSTED"}[protocol]
    text = "the requests in flight hold the 3000000 bytes that the server has for all of them. "
    assert set(refusals) == {(status, f"{text}Use --max-request-memory to increase the limit.")}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_that_is_larger_than_all_may_be(small: ServerProcess, protocol: str) -> None:
    with Client(protocol, small.addresses[protocol]) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("bytes", {"IN_UINT8": np.zeros(2 * LIMIT, np.uint8)})
    assert status_of(caught.value) == "RESOURCE_EXHAUSTED"
