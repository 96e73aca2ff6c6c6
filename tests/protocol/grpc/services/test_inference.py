"""Every call of the service, as bytes, against a small core."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from protocol.grpc.services.handlers import grpc_handlers
from protocol.grpc.settings import GrpcSettings
from tests.protocol.grpc.caller import serving
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import CONFIG
from tests.protocol.grpc.harness import INTERNAL, INVALID_ARGUMENT, NOT_FOUND, UNAVAILABLE, UNIMPLEMENTED


def test_every_call_of_triton_has_a_handler() -> None:
    handlers = grpc_handlers(edge_services(), GrpcSettings())
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    paths = [f"/{service.full_name}/{method.name}" for method in service.methods]
    assert [path for path in handlers if path.startswith("/inference.")] == paths
    for method in service.methods:
        cardinality = handlers[f"/{service.full_name}/{method.name}"].cardinality
        assert cardinality.client_streaming == method.client_streaming
        assert cardinality.server_streaming == method.server_streaming


def test_every_call_is_in_the_table_of_the_documentation() -> None:
    page = (Path(__file__).parents[4] / "docs" / "protocol-coverage.md").read_text()
    section = page[page.index("## gRPC") :]
    calls = {path.rpartition("/")[2] for path in grpc_handlers(edge_services(), GrpcSettings())}
    assert [call for call in sorted(calls) if not re.search(rf"\b{call}\b", section)] == []


async def test_live_and_ready() -> None:
    async with serving() as peers:
        assert (await peers.ask("ServerLive")).live is True
        assert (await peers.ask("ServerReady")).ready is True
        peers.core.is_complete = False
        assert (await peers.ask("ServerReady")).ready is False
        assert (await peers.ask("ModelReady", service_pb2.ModelReadyRequest(name="echo"))).ready is True
        other = service_pb2.ModelReadyRequest(name="echo", version="2")
        assert (await peers.ask("ModelReady", other)).ready is False


async def test_a_server_that_stops_says_so() -> None:
    async with serving() as peers:
        peers.core.is_up = False
        response = await peers.call("ServerReady")
        assert (response.status, response.message) == (UNAVAILABLE, "Server exiting")


@pytest.mark.parametrize(("model", "version"), [("other", ""), ("unavailable", ""), ("echo", "2")])
async def test_a_model_that_is_not_there_is_not_ready(model: str, version: str) -> None:
    """Which is no error: clients ask that to see whether it is there."""
    request = service_pb2.ModelReadyRequest(name=model, version=version)
    async with serving() as peers:
        assert (await peers.ask("ModelReady", request)).ready is False
        peers.core.is_up = False
        assert await peers.refusal("ModelReady", request) == (UNAVAILABLE, "Server exiting")


async def test_a_model_of_a_bad_version_is_an_error() -> None:
    async with serving() as peers:
        status, message = await peers.refusal(
            "ModelReady", service_pb2.ModelReadyRequest(name="echo", version="newest")
        )
        assert status == INVALID_ARGUMENT
        assert "version string 'newest'" in message


@pytest.mark.parametrize("name", ["ModelMetadata", "ModelConfig"])
async def test_unknown_models_and_bad_versions(name: str) -> None:
    request = getattr(service_pb2, f"{name}Request")
    async with serving() as peers:
        response = await peers.call(name, request(name="other"))
        assert (response.status, response.message) == (NOT_FOUND, "Request for unknown model: 'other' is not found")
        response = await peers.call(name, request(name="echo", version="newest"))
        assert response.status == INVALID_ARGUMENT
        assert "version string 'newest'" in response.message


async def test_server_metadata() -> None:
    async with serving() as peers:
        metadata = await peers.ask("ServerMetadata")
        assert (metadata.name, metadata.version) == ("trioton", "0.1.0")
        assert list(metadata.extensions) == ["classification", "model_repository"]


async def test_model_metadata() -> None:
    async with serving() as peers:
        metadata = await peers.ask("ModelMetadata", service_pb2.ModelMetadataRequest(name="echo"))
        assert (metadata.name, list(metadata.versions), metadata.platform) == ("echo", ["1", "2"], "python")
        for tensors in (metadata.inputs, metadata.outputs):
            assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in tensors] == [
                ("x", "FP32", [-1, -1])
            ]


async def test_model_config() -> None:
    async with serving() as peers:
        config = (await peers.ask("ModelConfig", service_pb2.ModelConfigRequest(name="echo"))).config
        assert (config.name, config.backend, config.max_batch_size) == ("echo", "python", 8)
        assert config.input[0].data_type == 11
        assert config.instance_group[0].count == CONFIG["instance_group"][0]["count"]
        assert config.dynamic_batching.max_queue_delay_microseconds == 100
        assert config.version_policy.latest.num_versions == 1
        assert config.parameters["key"].string_value == "value"


async def test_a_config_that_the_schema_does_not_have_is_our_defect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(CONFIG, "no_such_field", 1)
    async with serving() as peers:
        response = await peers.call("ModelConfig", service_pb2.ModelConfigRequest(name="echo"))
        assert response.status == INTERNAL
        assert "no_such_field" in caplog.text


async def test_statistics() -> None:
    async with serving() as peers:
        (statistics,) = (await peers.ask("ModelStatistics")).model_stats
        assert (statistics.name, statistics.version, statistics.last_inference) == ("echo", "1", 1_700_000_000_000)
        assert (statistics.inference_count, statistics.execution_count) == (3, 2)
        times = statistics.inference_stats
        assert (times.success.count, times.success.ns, times.queue.count) == (3, 4_000_000_000, 3)
        assert times.HasField("cache_hit")
        (batch,) = statistics.batch_stats
        assert (batch.batch_size, batch.compute_infer.count) == (2, 3)
        (index, responses), *others = statistics.response_stats.items()
        assert (index, responses.empty_response.ns, responses.cancel.count, others) == ("1", 4_000_000_000, 1, [])
        assert responses.HasField("success")
        (used,) = statistics.memory_usage
        assert (used.type, used.id, used.byte_size) == ("GPU", 1, 2**33)
        response = await peers.call("ModelStatistics", service_pb2.ModelStatisticsRequest(name="other"))
        assert (response.status, response.message) == (INVALID_ARGUMENT, "requested model 'other' is not available")


async def test_repository_index() -> None:
    async with serving() as peers:
        index = (await peers.ask("RepositoryIndex")).models
        assert [(one.name, one.version, one.state, one.reason) for one in index] == [
            ("echo", "1", "READY", ""),
            ("broken", "1", "UNAVAILABLE", "Internal: no file"),
            ("never loaded", "", "", ""),
        ]
        ready = await peers.ask("RepositoryIndex", service_pb2.RepositoryIndexRequest(ready=True))
        assert [one.name for one in ready.models] == ["echo"]


@pytest.mark.parametrize("name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
async def test_repositories_cannot_be_named(name: str) -> None:
    async with serving() as peers:
        response = await peers.call(name, getattr(service_pb2, f"{name}Request")(repository_name="r"))
        assert (response.status, response.message) == (
            UNIMPLEMENTED,
            "'repository_name' specification is not supported",
        )
        assert not peers.core.loaded
        assert not peers.core.unloaded


async def test_load_with_parameters() -> None:
    request = service_pb2.RepositoryModelLoadRequest(model_name="m")
    request.parameters["config"].string_param = '{"name": "m"}'
    request.parameters["file:1/model.py"].bytes_param = b"\0\1"
    async with serving() as peers:
        await peers.ask("RepositoryModelLoad", request)
        await peers.ask("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="n"))
        (first, parameters), (second, nothing) = peers.core.loaded
        assert (first, parameters.config, dict(parameters.files)) == ("m", '{"name": "m"}', {"1/model.py": b"\0\1"})
        assert (second, nothing.config, dict(nothing.files)) == ("n", None, {})


LOAD_ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("config", {"bytes_param": b""}, "invalid value type for load parameter 'config', expected string_param."),
    ("file:1/a", {"string_param": ""}, "invalid value type for load parameter 'file:1/a', expected bytes_param."),
    ("other", {"bool_param": True}, "unrecognized load parameter 'other'."),
]


@pytest.mark.parametrize(("key", "fields", "message"), LOAD_ERRORS)
async def test_load_parameters_that_are_refused(key: str, fields: dict[str, Any], message: str) -> None:
    request = service_pb2.RepositoryModelLoadRequest(model_name="m")
    for field, value in fields.items():
        setattr(request.parameters[key], field, value)
    async with serving() as peers:
        response = await peers.call("RepositoryModelLoad", request)
        assert (response.status, response.message) == (INVALID_ARGUMENT, message)
        assert peers.core.loaded == []


async def test_unload() -> None:
    request = service_pb2.RepositoryModelUnloadRequest(model_name="m")
    async with serving() as peers:
        await peers.ask("RepositoryModelUnload", request)
        request.parameters["unload_dependents"].bool_param = True
        await peers.ask("RepositoryModelUnload", request)
        assert peers.core.unloaded == [("m", False), ("m", True)]
        request.parameters["unload_dependents"].string_param = "yes"
        response = await peers.call("RepositoryModelUnload", request)
        assert response.status == INVALID_ARGUMENT
        assert "'unload_dependents' parameter, expected bool_param" in response.message


@pytest.mark.parametrize("name", ["ServerLive", "ModelReady", "ModelInfer", "RepositoryModelLoad", "ModelConfig"])
async def test_broken_protobuf_is_the_clients_mistake(name: str) -> None:
    async with serving() as peers:
        response = await peers.client.call(f"/inference.GRPCInferenceService/{name}", b"\x0a\x09ab")
        assert response.status == INVALID_ARGUMENT
        assert f"is not a valid inference.{name}Request message" in response.message


async def test_infer() -> None:
    request = service_pb2.ModelInferRequest(model_name="echo", id="7", raw_input_contents=[b"\1\2\3\4"])
    request.inputs.add(name="x", datatype="INT32", shape=[1])
    async with serving() as peers:
        message = await peers.ask("ModelInfer", request)
        assert (message.model_name, message.model_version, message.id) == ("echo", "1", "7")
        assert list(message.raw_output_contents) == [b"\1\2\3\4"]
        assert "triton_final_response" not in message.parameters


INFER_ERRORS = [("unknown", NOT_FOUND), ("unavailable", UNAVAILABLE), ("defect", INTERNAL)]


@pytest.mark.parametrize(("model", "status"), INFER_ERRORS)
async def test_infer_errors_have_their_status(model: str, status: int) -> None:
    async with serving() as peers:
        response = await peers.call("ModelInfer", service_pb2.ModelInferRequest(model_name=model))
        assert (response.status, response.messages) == (status, [])
