"""Triton's extensions as NVIDIA's client uses them: shared memory, settings, classes, restrictions, decoupling."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, shared_memory

from protocol.access.control import AccessControl
from protocol.access.restricted import GRPC_PROTOCOL, RestrictedApis
from tests.protocol.grpc.edge_services import FakeTraceControl
from tests.protocol.grpc.served import SMALL, Answers, serving, tensor


async def test_shared_memory_with_nvidias_client() -> None:
    """Registered, used for input and output, listed and let go, as its examples do."""
    name, size = f"trioton_test_{uuid.uuid4().hex}", SMALL.nbytes

    def use(client: triton.InferenceServerClient) -> None:
        handle = shared_memory.create_shared_memory_region("region", f"/{name}", 2 * size)
        try:
            shared_memory.set_shared_memory_region(handle, [SMALL])
            client.register_system_shared_memory("region", f"/{name}", 2 * size)
            status = client.get_system_shared_memory_status("region", as_json=True)
            assert status["regions"]["region"]["byte_size"] == str(2 * size)
            given = triton.InferInput("x", SMALL.shape, "FP32")
            given.set_shared_memory("region", size)
            wanted = triton.InferRequestedOutput("x")
            wanted.set_shared_memory("region", size, offset=size)
            result = client.infer("echo", [given], outputs=[wanted])
            assert result.get_output("x").datatype == "FP32"
            found = shared_memory.get_contents_as_numpy(handle, np.float32, SMALL.shape, offset=size)
            np.testing.assert_array_equal(found, SMALL)
            with pytest.raises(InferenceServerException, match="already in manager") as caught:
                client.register_system_shared_memory("region", f"/{name}", size)
            assert caught.value.status() == "StatusCode.ALREADY_EXISTS"
            client.unregister_system_shared_memory("region")
            assert not client.get_system_shared_memory_status().regions
            client.unregister_cuda_shared_memory()
            assert not client.get_cuda_shared_memory_status().regions
            del found  # a view of the region
        finally:
            shared_memory.destroy_shared_memory_region(handle)

    async with serving() as served:
        await served.run(use)


async def test_settings_with_nvidias_client() -> None:
    control = FakeTraceControl()

    def use(client: triton.InferenceServerClient) -> None:
        assert client.get_trace_settings(as_json=True)["settings"]["trace_rate"]["value"] == ["1000"]
        client.update_trace_settings("echo", {"trace_level": ["TIMESTAMPS"], "trace_rate": "5", "trace_count": None})
        updated = client.update_log_settings({"log_verbose_level": 2, "log_format": "ISO8601", "log_info": False})
        assert updated.settings["log_verbose_level"].uint32_param == 2
        assert client.get_log_settings(as_json=True)["settings"]["log_format"] == {"string_param": "ISO8601"}

    async with serving(trace=control) as served:
        await served.run(use)
        changes = {"trace_level": ("TIMESTAMPS",), "trace_rate": ("5",), "trace_count": None}
        assert control.updates == [(changes, "echo")]


async def test_classes_with_nvidias_client() -> None:
    def use(client: triton.InferenceServerClient) -> list[bytes]:
        scores = np.array([[0.25, 4, 1]], np.float32)
        wanted = triton.InferRequestedOutput("x", class_count=2)
        found: list[bytes] = client.infer("echo", [tensor(scores)], outputs=[wanted]).as_numpy("x").reshape(-1).tolist()
        return found

    async with serving() as served:
        assert await served.run(use) == [b"4.000000:1:dog", b"1.000000:2"]


async def test_keepalive_options_of_nvidias_client() -> None:
    options = triton.KeepAliveOptions(10_000, 5_000, True, 0)

    async with serving() as served:
        result = await served.run(lambda client: client.infer("echo", [tensor(SMALL)]), keepalive_options=options)
        np.testing.assert_array_equal(result.as_numpy("x"), SMALL)


async def test_restricted_calls_with_nvidias_client() -> None:
    access = AccessControl(RestrictedApis.parse(["inference:key=value"], GRPC_PROTOCOL))

    def use(client: triton.InferenceServerClient) -> None:
        client.get_server_metadata()
        with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-key'") as caught:
            client.infer("echo", [tensor(SMALL)])
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        client.infer("echo", [tensor(SMALL)], headers={"triton-grpc-protocol-key": "value"})

    async with serving(access=access) as served:
        await served.run(use)


async def test_a_restricted_stream_of_nvidias_client_ends_at_once() -> None:
    access = AccessControl(RestrictedApis.parse(["inference:key=value"], GRPC_PROTOCOL))

    def use(client: triton.InferenceServerClient) -> Answers:
        answers = Answers()
        client.start_stream(answers)
        answers.wait_for(1)
        client.stop_stream()
        return answers

    async with serving(access=access) as served:
        answers = await served.run(use)
        assert [error.status() for error in answers.errors] == ["StatusCode.UNAVAILABLE"]


async def test_a_decoupled_model_with_nvidias_client() -> None:
    """It counts responses by their final flags."""

    def use(client: triton.InferenceServerClient) -> Answers:
        answers = Answers()
        client.start_stream(answers)
        for name, count in (("a", 3), ("b", 0)):
            parameters = {"responses": count, "end": "flag"}
            client.async_stream_infer(
                "many", [tensor(SMALL)], request_id=name, parameters=parameters, enable_empty_final_response=True
            )
        answers.wait_for(5)
        client.stop_stream()
        return answers

    async with serving() as served:
        answers = await served.run(use)
        found = [result.get_response() for result in answers.results]
        finals = [(one.id, len(one.outputs), one.parameters["triton_final_response"].bool_param) for one in found]
        assert [one for one in finals if one[0] == "a"] == [("a", 1, False)] * 3 + [("a", 0, True)]
        assert [one for one in finals if one[0] == "b"] == [("b", 0, True)]
