"""The gRPC edge on a real socket, with NVIDIA's client and gRPC's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import ml_dtypes
import numpy as np
import pytest
import trio
import trio.testing
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from protocol.grpc.call.stream import SHUTTING_DOWN
from protocol.grpc.server import GrpcSettings, serve_grpc
from protocol.grpc.settings import ConnectionLimits
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.served import SMALL, Answers, serving, tensor, wire_request


async def test_all_of_nvidias_clients_calls() -> None:
    def use(client: triton.InferenceServerClient) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("echo")
        assert client.is_model_ready("echo", "1")
        assert client.get_server_metadata().name == "trioton"
        assert client.get_model_metadata("echo", as_json=True)["inputs"][0]["datatype"] == "FP32"
        assert client.get_model_config("echo").config.max_batch_size == 8
        assert client.get_inference_statistics("echo").model_stats[0].inference_count == 3
        assert [one.state for one in client.get_model_repository_index().models] == ["READY", "UNAVAILABLE", ""]
        client.load_model("m", config='{"name": "m"}', files={"file:1/model.py": b"code"})
        client.unload_model("m", unload_dependents=True)

    async with serving() as served:
        await served.run(use)
        ((name, parameters),) = served.core.loaded
        assert (name, parameters.config, dict(parameters.files)) == ("m", '{"name": "m"}', {"1/model.py": b"code"})
        assert served.core.unloaded == [("m", True)]


ARRAYS = [
    (np.array([[True, False]]), "BOOL"),
    (np.arange(4, dtype=np.uint8), "UINT8"),
    (np.arange(4, dtype=np.int64).reshape(2, 2), "INT64"),
    (np.arange(4, dtype=np.float16), "FP16"),
    (np.arange(4, dtype=ml_dtypes.bfloat16), "BF16"),
    (np.array([b"ab", b"", "ü".encode()], dtype=np.object_), "BYTES"),
    (np.zeros((0, 3), dtype=np.float64), "FP64"),
]


@pytest.mark.parametrize(("array", "datatype"), ARRAYS, ids=[datatype for _, datatype in ARRAYS])
async def test_infer_with_nvidias_client(array: Any, datatype: str) -> None:
    def use(client: triton.InferenceServerClient) -> Any:
        options: dict[str, Any] = {"request_id": "7", "parameters": {"mine": "value"}, "priority": 2, "timeout": 9}
        return client.infer("echo", [tensor(array, datatype)], outputs=[triton.InferRequestedOutput("x")], **options)

    async with serving() as served:
        result = await served.run(use)
        assert result.get_response().id == "7"
        np.testing.assert_array_equal(result.as_numpy("x"), array)
        (request,) = served.core.requests
        assert request.parameters == {"mine": "value"}
        assert (request.priority, request.timeout_microseconds, request.requested_outputs) == (2, 9, ("x",))


async def test_infer_errors_reach_nvidias_client() -> None:
    def use(client: triton.InferenceServerClient) -> None:
        with pytest.raises(
            InferenceServerException, match="Request for unknown model: 'unknown' is not found"
        ) as caught:
            client.infer("unknown", [tensor(SMALL)])
        assert caught.value.status() == "StatusCode.NOT_FOUND"

    async with serving() as served:
        await served.run(use)


@pytest.mark.slow
async def test_large_tensors_go_both_ways() -> None:
    """20 MB, more than every window."""
    array = np.random.default_rng(1).random((5_000_000,), dtype=np.float32)

    async with serving() as served:
        result = await served.run(lambda client: client.infer("echo", [tensor(array)]))
        assert np.array_equal(result.as_numpy("x"), array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_requests_of_nvidias_client(algorithm: str) -> None:
    array = np.zeros(100_000, dtype=np.float32)

    def use(client: triton.InferenceServerClient) -> Any:
        return client.infer("echo", [tensor(array)], compression_algorithm=algorithm)

    async with serving() as served:
        assert np.array_equal((await served.run(use)).as_numpy("x"), array)


@pytest.mark.slow
async def test_many_calls_at_once_on_one_connection() -> None:
    def use(stub: Any) -> None:
        futures = []
        for number in range(300):
            request = wire_request("wait")
            request.id = str(number)
            futures.append(stub.ModelInfer.future(request))
        assert [future.result(30).id for future in futures] == [str(number) for number in range(300)]

    async with serving() as served:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.run_stub, use)
            await served.core.wait_for_in_flight(300)
            served.core.gate.set()
        assert served.core.most_in_flight == 300


async def test_many_clients_in_many_threads() -> None:
    def use(client: triton.InferenceServerClient) -> None:
        def many(_: int) -> None:
            for _ in range(20):
                assert np.array_equal(client.infer("echo", [tensor(SMALL)]).as_numpy("x"), SMALL)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(many, range(8)))

    async with serving() as served:
        await served.run(use)
        assert len(served.core.requests) == 160


async def test_a_cancelled_call_is_cancelled_in_the_core() -> None:
    def use(stub: Any) -> None:
        future = stub.ModelInfer.future(wire_request("forever"))
        trio.from_thread.run(served.core.came.wait)
        assert future.cancel()
        with pytest.raises(grpc.FutureCancelledError):
            future.result()
        trio.from_thread.run(served.core.cancellation.wait)

    async with serving() as served:
        await served.run_stub(use)
        assert served.core.cancelled == ["7"]


async def test_a_clients_deadline_is_cancelled_in_the_core() -> None:
    def use(client: triton.InferenceServerClient) -> None:
        with pytest.raises(InferenceServerException, match=r"(?i)deadline") as caught:
            client.infer("forever", [tensor(SMALL)], client_timeout=0.2)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"

    async with serving() as served:
        await served.run(use)
        await served.core.cancellation.wait()


async def test_a_client_that_closes_cancels_its_calls() -> None:
    async with serving() as served:
        channel = grpc.insecure_channel(served.address)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        future = stub.ModelInfer.future(wire_request("forever"))
        await served.core.came.wait()
        await trio.to_thread.run_sync(channel.close)
        await served.core.cancellation.wait()
        assert future.code() is grpc.StatusCode.CANCELLED


@pytest.mark.slow
async def test_a_message_over_the_limit() -> None:
    settings = GrpcSettings(host="127.0.0.1", port=0, limits=ConnectionLimits(max_message_size=1_000_000))

    def use(client: triton.InferenceServerClient) -> None:
        with pytest.raises(InferenceServerException, match="larger than the server's limit of 1000000 bytes") as caught:
            client.infer("echo", [tensor(np.zeros(10_000_000, np.float32))])
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert client.infer("echo", [tensor(SMALL)])

    async with serving(settings) as served:
        await served.run(use)
        assert len(served.core.requests) == 1


async def test_streaming_with_nvidias_client() -> None:
    def use(client: triton.InferenceServerClient) -> Answers:
        answers = Answers()
        client.start_stream(answers)
        for number in range(50):
            model = "unavailable" if number == 10 else "echo"
            client.async_stream_infer(model, [tensor(SMALL + number)], request_id=str(number))
        answers.wait_for(50)
        client.stop_stream()
        return answers

    async with serving() as served:
        answers = await served.run(use)
        expected = [str(number) for number in range(50) if number != 10]
        assert [result.get_response().id for result in answers.results] == expected
        for result in answers.results:
            response = result.get_response()
            np.testing.assert_array_equal(result.as_numpy("x"), SMALL + int(response.id))
            assert response.parameters["triton_final_response"].bool_param
        assert [error.message() for error in answers.errors] == ["model 'unavailable' is restarting"]


async def test_cancelling_a_stream_of_nvidias_client() -> None:
    def use(client: triton.InferenceServerClient) -> Answers:
        answers = Answers()
        client.start_stream(answers)
        client.async_stream_infer("forever", [tensor(SMALL)], request_id="a")
        trio.from_thread.run(served.core.came.wait)
        client.stop_stream(cancel_requests=True)
        trio.from_thread.run(served.core.cancellation.wait)
        return answers

    async with serving() as served:
        answers = await served.run(use)
        assert served.core.cancelled == ["a"]
        assert [error.status() for error in answers.errors] == ["StatusCode.CANCELLED"]


async def test_health_with_grpcs_channel() -> None:
    """The path and messages that probes use."""

    def use() -> bytes:
        with grpc.insecure_channel(served.address) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            response: bytes = check(b"", timeout=30)
            return response

    async with serving() as served:
        assert await trio.to_thread.run_sync(use) == b"\x08\x01"


@pytest.mark.slow
async def test_stop_finishes_what_is_in_flight_and_takes_no_more() -> None:
    async with serving() as served:
        channel = grpc.insecure_channel(served.address)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        accepted = stub.ModelInfer.future(wire_request("wait"))
        await served.core.came.wait()
        served.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not served.has_ended.is_set()
        late = stub.ModelInfer.future(wire_request())
        error = await trio.to_thread.run_sync(partial(late.exception, timeout=30))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        served.core.gate.set()
        response = await trio.to_thread.run_sync(partial(accepted.result, timeout=30))
        assert response.id == "7"
        await served.has_ended.wait()
        await trio.to_thread.run_sync(channel.close)


async def test_stop_with_an_idle_client_and_an_idle_stream_returns() -> None:
    def use(client: triton.InferenceServerClient) -> Answers:
        answers = Answers()
        client.start_stream(answers)
        client.async_stream_infer("echo", [tensor(SMALL)])
        answers.wait_for(1)
        trio.from_thread.run_sync(served.stop.set)
        trio.from_thread.run(served.has_ended.wait)
        answers.wait_for(2)
        client.stop_stream()
        return answers

    async with serving() as served:
        answers = await served.run(use)
        assert [error.message() for error in answers.errors] == [SHUTTING_DOWN]


async def test_cancelling_means_stop_now() -> None:
    core = FakeCore()
    with ThreadPoolExecutor(1) as pool:
        async with trio.open_nursery() as nursery:
            core.tasks = nursery
            settings = GrpcSettings(host="127.0.0.1", port=0)
            host, port = await nursery.start(serve_grpc, edge_services(core), settings, trio.Event())

            def use() -> grpc.StatusCode:
                with grpc.insecure_channel(f"{host}:{port}") as channel:
                    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                    return stub.ModelInfer.future(wire_request("forever")).exception(30).code()

            status = pool.submit(use)
            await core.came.wait()
            nursery.cancel_scope.cancel()
        assert core.cancelled == ["7"]
        assert status.result(30) is grpc.StatusCode.UNAVAILABLE


async def test_two_servers_in_one_process() -> None:
    async with serving() as first, serving() as second:
        await first.run(lambda client: client.infer("echo", [tensor(SMALL)]))
        assert (len(first.core.requests), len(second.core.requests)) == (1, 0)
        assert first.address != second.address


async def test_an_address_in_use_is_an_os_error() -> None:
    async with serving() as served:
        host, port = served.address.split(":")
        with pytest.raises(OSError, match=r"(?i)in use"):
            await serve_grpc(edge_services(), GrpcSettings(host=host, port=int(port)), trio.Event())


async def test_port_0_of_a_name_with_several_addresses_is_one_port() -> None:
    async with serving(GrpcSettings(host="localhost", port=0)) as served:
        assert int(served.address.rpartition(":")[2]) > 0
