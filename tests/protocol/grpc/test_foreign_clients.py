"""Clients that were not written for this server: gRPC's own in both of its styles, grpclib's, and curl."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from protocol.access.forwarding import HeaderForwarding
from protocol.grpc.services.handlers import SERVICES
from protocol.grpc.settings import ConnectionLimits, GrpcSettings
from tests.protocol.grpc.served import LOCAL, SMALL, Served, serving, wire_request

pytestmark = pytest.mark.slow


def with_limits(**limits: Any) -> GrpcSettings:
    return dataclasses.replace(LOCAL, limits=ConnectionLimits(**limits))


# gRPC's own.


async def test_grpcs_stub_streams_in_both_directions() -> None:
    def use(stub: Any) -> list[tuple[str, str]]:
        requests = [wire_request("echo", "a"), wire_request("unavailable", "b"), wire_request("echo", "c")]
        return [(one.infer_response.id, one.error_message) for one in stub.ModelStreamInfer(iter(requests))]

    async with serving() as served:
        expected = [("a", ""), ("b", "model 'unavailable' is restarting"), ("c", "")]
        assert await served.run_stub(use) == expected


async def test_grpcs_stub_sends_space_around_metadata() -> None:
    """Which means nothing, and costs nobody a call."""

    def use(stub: Any) -> None:
        for value in ("v ", " v", "  v  ", " "):
            assert stub.ModelInfer(wire_request(), metadata=[("x-key", value)]).model_name == "echo"

    async with serving(forwarding=HeaderForwarding("^x-")) as served:
        await served.run_stub(use)
        assert [request.parameters["x-key"] for request in served.core.requests] == ["v", "v", "v", ""]


async def test_grpcs_stub_measures_the_line_while_a_large_response_comes() -> None:
    """By PINGs, of which it sends a few for each response of this size."""
    size = 100 << 20
    request = wire_request()
    request.parameters["size"].int64_param = size

    def use(stub: Any) -> None:
        for _ in range(3):
            assert len(stub.ModelInfer(request).raw_output_contents[0]) == size

    async with serving() as served:
        await served.run_stub(use)
        assert served.counts == {}


async def test_calls_go_on_while_connections_grow_old() -> None:
    """The client opens new ones, and notices nothing."""

    def use(stub: Any) -> None:
        for number in range(300):
            assert stub.ModelInfer(wire_request("echo", str(number))).id == str(number)

    async with serving(with_limits(max_connection_age=0.05)) as served:
        await served.run_stub(use)
        assert len(served.core.requests) == 300


async def test_more_calls_than_a_connection_may_have_wait_in_the_client() -> None:
    def use(stub: Any) -> list[str]:
        futures = [stub.ModelInfer.future(wire_request("echo", str(number))) for number in range(200)]
        return [future.result(20).id for future in futures]

    async with serving(with_limits(max_concurrent_streams=4)) as served:
        assert await served.run_stub(use) == [str(number) for number in range(200)]
        assert served.core.most_in_flight <= 4


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("algorithm", [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_responses(algorithm: grpc.Compression, level: int) -> None:
    """Whatever the client compresses with itself; the streams' too, and those in a thread."""
    array = np.zeros(100_000, np.float32)

    def request() -> Any:
        made = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[array.tobytes()])
        made.inputs.add(name="x", datatype="FP32", shape=array.shape)
        return made

    def use(stub: Any) -> None:
        assert stub.ModelInfer(request(), compression=algorithm).raw_output_contents[0] == array.tobytes()
        requests = iter([request(), wire_request(), request()])
        answers = list(stub.ModelStreamInfer(requests, compression=algorithm))
        sizes = [len(one.infer_response.raw_output_contents[0]) for one in answers]
        assert sizes == [array.nbytes, SMALL.nbytes, array.nbytes]

    async with serving(dataclasses.replace(LOCAL, compression_level=level)) as served:
        await served.run_stub(use)


async def test_too_many_connections() -> None:
    """The next one is closed without a word, so that gRPC's clients wait before they try again."""
    async with serving(dataclasses.replace(LOCAL, max_connections=2)) as served:
        host, port = served.address.split(":")

        async def connect() -> trio.SocketStream:
            return await trio.open_tcp_stream(host, int(port))

        async with await connect() as first:
            async with await connect() as second:
                assert await first.receive_some()
                assert await second.receive_some()
                async with await connect() as third:
                    with contextlib.suppress(trio.BrokenResourceError):
                        assert await third.receive_some() == b""
                assert served.counts == {"max_connections": 1}

                def refused(stub: Any) -> grpc.StatusCode:
                    return stub.ModelInfer.future(wire_request()).exception(20).code()

                assert await served.run_stub(refused) is grpc.StatusCode.UNAVAILABLE
                assert served.counts["max_connections"] < 5
            await served.run_stub(lambda stub: stub.ModelInfer(wire_request(), wait_for_ready=True, timeout=20))


# gRPC's own, on asyncio.


async def test_grpcs_asyncio_client() -> None:
    async def requests() -> AsyncIterator[Any]:
        for name in ("a", "b", "c"):
            yield wire_request("echo", name)

    async def use(address: str) -> tuple[list[str], list[str], grpc.StatusCode]:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            calls = [stub.ModelInfer(wire_request("echo", str(number))) for number in range(20)]
            unary = [response.id for response in await asyncio.gather(*calls)]
            stream = [one.infer_response.id async for one in stub.ModelStreamInfer(requests())]
            try:
                await stub.ModelInfer(wire_request("unknown"))
            except grpc.aio.AioRpcError as error:
                return unary, stream, error.code()
            raise AssertionError("it answered for an unknown model")

    async with serving() as served:
        unary, stream, status = await trio.to_thread.run_sync(asyncio.run, use(served.address))
        assert unary == [str(number) for number in range(20)]
        assert stream == ["a", "b", "c"]
        assert status is grpc.StatusCode.NOT_FOUND


# grpclib's.


async def test_grpclibs_client() -> None:
    """Metadata, deadlines, statuses, streams, health and reflection, as it speaks of them."""
    async with serving(forwarding=HeaderForwarding("^x-")) as served:
        host, port = served.address.split(":")
        command = [sys.executable, "-m", "tests.protocol.grpc.grpclib_client", host, port]
        result = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert result.returncode == 0, result.stderr.decode()
        found = json.loads(result.stdout)
        assert found["name"] == "trioton"
        assert found["infer"] == ["7", "01020304"]
        assert served.core.requests[0].parameters == {"x-user": "ann"}
        assert found["unknown"] == ["NOT_FOUND", "Request for unknown model: 'unknown' is not found"]
        assert found["forever"][0] in ("TIMEOUT", "DEADLINE_EXCEEDED")
        await served.core.cancellation.wait()
        assert found["stream"] == [
            ["a", "", False],
            ["a", "", True],
            ["b", "model 'unavailable' is restarting", True],
        ]
        assert found["health"] == "SERVING"
        assert found["services"] == list(SERVICES)


# curl: HTTP/2 that is no gRPC.


def curl(served: Served, *arguments: str) -> tuple[int, str]:
    """Status and `grpc-message` of what curl gets."""
    url = f"http://{served.address}/inference.GRPCInferenceService/ServerLive"
    command = ["curl", "--silent", "--http2-prior-knowledge", "--max-time", "20", "--dump-header", "-", *arguments, url]
    # Old versions with data still to send take RST_STREAM(NO_ERROR) behind the whole answer for a failure, 92, and may
    # throw the answer away: a matter of which comes first, so they are asked again.
    for _ in range(20):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.stdout:
            break
        assert result.returncode == 92, result
    status = int(result.stdout.split()[1])
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)
    return status, lines.get("grpc-message", "")


CURL: list[tuple[list[str], int, str]] = [
    ([], 405, "expected POST with content-type application/grpc, got GET with ''"),
    (["--data", "{}"], 415, "got POST with 'application/x-www-form-urlencoded'"),
    (["--json", "{}"], 415, "got POST with 'application/json'"),
    (["--request", "PUT", "--header", "content-type: application/grpc"], 405, "got PUT with 'application/grpc'"),
    (
        ["--data-binary", "hello", "--header", "content-type: application/grpc", "--header", "te: trailers"],
        200,
        "a message's compressed flag must be 0 or 1, got 104",
    ),
]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("arguments", "status", "message"), CURL)
async def test_curl(arguments: list[str], status: int, message: str) -> None:
    async with serving() as served:
        found = await trio.to_thread.run_sync(curl, served, *arguments)
        assert found[0] == status
        assert message in found[1]


async def test_http_1_is_no_http_2() -> None:
    """A client that asks for an upgrade is closed, with the words of HTTP/2."""

    def ask() -> bytes:
        host, port = served.address.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(
                b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
            )
            received = b""
            while data := connection.recv(65536):
                received += data
            return received

    async with serving() as served:
        assert (await trio.to_thread.run_sync(ask))[3] == 4  # SETTINGS, then GOAWAY
