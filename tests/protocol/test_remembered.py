"""What the edges remember from one request to the next is bounded in bytes, whatever clients send."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tritonclient.grpc import service_pb2

from protocol.access.forwarding import HeaderForwarding
from protocol.errors import ServerError
from protocol.grpc.codec.request_templates import RequestTemplates as GrpcTemplates
from protocol.http.codec.infer import parse_header_length
from protocol.http.codec.request_templates import RequestTemplates as HttpTemplates
from protocol.http.http1.head import is_worth_keeping, parse_head
from protocol.http.routes import route_table

pytestmark = pytest.mark.slow

COUNT = 1100
GRPC_COUNT = 300  # of 512, since they take long to make
MIB = 1 << 20
LONG = "x" * 64_000


def paths() -> Callable[[int], None]:
    table = route_table()

    def find(number: int) -> None:
        table.find(f"/v2/models/{number}{LONG}/infer".encode())

    return find


def short_paths() -> Callable[[int], None]:
    table = route_table()

    def find(number: int) -> None:
        table.find(f"/v2/models/{number}{LONG[:480]}/infer".encode())

    return find


def heads(name: str, count: int) -> Callable[[int], None]:
    lines = "".join(f"{name}{index}:\r\n" for index in range(count))

    def parse(number: int) -> None:
        parse_head(f"GET /{number} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())

    return parse


def header_lengths() -> Callable[[int], None]:
    def parse(number: int) -> None:
        parse_header_length(b"\x85" * 60_000 + b"%d" % number, 1 << 20)

    return parse


def http_templates() -> Callable[[int], None]:
    templates = HttpTemplates()
    tensor = {"name": "a", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}

    def decode(number: int) -> None:
        count = number % 30
        body = {"inputs": [tensor] * count, "parameters": {f"{number}p{each}": 1 for each in range(200)}}
        text = json.dumps(body, separators=(",", ":")).encode()
        templates.decode(text + bytes(4 * count), len(text), model_name="m", model_version=-1, max_input_size=1 << 20)

    return decode


def grpc_templates(inputs: int, parameters: int) -> Callable[[int], None]:
    """Every model has its own, and a model several."""
    templates = GrpcTemplates()

    def decode(number: int) -> None:
        message = service_pb2.ModelInferRequest(model_name=f"m{number % 64}")
        for each in range(parameters):
            message.parameters[f"{each:x}"].int64_param = number
        for _ in range(inputs):
            message.inputs.add(name="a", datatype="INT8", shape=[number % 16])
        message.raw_input_contents.extend([bytes(number % 16)] * inputs)
        data = message.SerializeToString()
        templates.decode(templates.read(data), data)

    return decode


def forwarded_names() -> Callable[[int], None]:
    forwarding = HeaderForwarding("none")

    def forward(number: int) -> None:
        forwarding.parameters([(f"{number}{LONG}", ""), (f"{number}{LONG[:250]}", "")])

    return forward


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


CASES: dict[str, Callable[[], Callable[[int], None]]] = {
    "long paths": paths,
    "paths": short_paths,
    "heads of many lines": lambda: heads("", 150),
    "heads": lambda: heads("a-header-of-some-length-", 20),
    "header lengths": header_lengths,
    "HTTP templates": http_templates,
    "gRPC templates with many inputs": lambda: grpc_templates(100, 0),
    "gRPC templates": lambda: grpc_templates(30, 30),
    "gRPC templates with many parameters": lambda: grpc_templates(0, 200),
    "forwarded names": forwarded_names,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("traced")
def test_many_that_differ_hold_little(case: str) -> None:
    ask = CASES[case]()
    with suppress(ServerError):
        ask(0)
    before = tracemalloc.get_traced_memory()[0]
    for number in range(1, GRPC_COUNT if case.startswith("gRPC") else COUNT):
        with suppress(ServerError):
            ask(number)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] - before < 12 * MIB


def test_a_silent_connection_remembers_no_large_head() -> None:
    """Each line of a head takes far more memory than its bytes."""
    usual = "".join(f"header-{index}: {'x' * 150}\r\n" for index in range(40))
    assert is_worth_keeping(f"GET / HTTP/1.1\r\nHost: x\r\n{usual}\r\n".encode())
    assert not is_worth_keeping(f"GET / HTTP/1.1\r\nHost: x\r\n{usual * 2}\r\n".encode())
    assert not is_worth_keeping(("GET / HTTP/1.1\r\nHost: x\r\n" + "a:\r\n" * 100 + "\r\n").encode())
