"""Server reflection under both of its names, read by what its clients are built from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from protocol.grpc.services.handlers import SERVICES, grpc_handlers
from protocol.grpc.settings import GrpcSettings
from protocol.proto import message_class
from tests.protocol.grpc.caller import Caller, serving
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.harness import INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED

VERSIONS = ["v1", "v1alpha"]


def question(version: str = "v1", **fields: Any) -> Any:
    return message_class(f"grpc.reflection.{version}.ServerReflectionRequest")(**fields)


async def ask(peers: Caller, *questions: Any, version: str = "v1") -> Sequence[Any]:
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    stream = await peers.client.open(path)
    await peers.client.send(stream, b"".join(framed(one.SerializeToString()) for one in questions), end=True)
    response = await peers.client.finish(stream)
    assert response.status == 0, response.message
    answer: Any = message_class(f"grpc.reflection.{version}.ServerReflectionResponse")
    found = [answer.FromString(message) for message in response.messages]
    assert [one.original_request for one in found] == list(questions)
    return found


def names(answer: Any) -> list[str]:
    files = answer.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(file).name for file in files]


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_services_are_listed(version: str) -> None:
    """Those that have handlers, and no others."""
    async with serving() as peers:
        (answer,) = await ask(peers, question(version, list_services="*"), version=version)
        listed = [service.name for service in answer.list_services_response.service]
        assert listed == list(SERVICES)
        paths = grpc_handlers(edge_services(), GrpcSettings())
        assert {path[1:].partition("/")[0] for path in paths} == set(listed)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_can_build_every_service(version: str) -> None:
    """From the answers alone, and then make a call with what it has built."""
    async with serving() as peers:
        answers = await ask(
            peers, *(question(version, file_containing_symbol=name) for name in SERVICES), version=version
        )
        pool = descriptor_pool.DescriptorPool()
        for answer in answers:
            for file in answer.file_descriptor_response.file_descriptor_proto:
                pool.AddSerializedFile(file)
        paths = {f"/{name}/{method.name}" for name in SERVICES for method in pool.FindServiceByName(name).methods}
        assert paths == set(grpc_handlers(edge_services(), GrpcSettings()))
        method = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ServerMetadata"]
        response = await peers.client.call("/inference.GRPCInferenceService/ServerMetadata", b"")
        made: Any = message_factory.GetMessageClass(method.output_type).FromString(response.messages[0])
        assert made.name == "trioton"


SYMBOLS = [
    ("inference.GRPCInferenceService", "grpc_service.proto"),
    ("inference.GRPCInferenceService.ModelInfer", "grpc_service.proto"),
    ("inference.ModelInferRequest.InferInputTensor", "grpc_service.proto"),
    ("inference.ModelInferRequest.inputs", "grpc_service.proto"),
    ("inference.ModelConfig", "model_config.proto"),
    ("inference.TYPE_FP32", "model_config.proto"),
    ("grpc.health.v1.Health.Watch", "health.proto"),
]


@pytest.mark.parametrize(("symbol", "file"), SYMBOLS)
async def test_the_file_of_a_symbol(symbol: str, file: str) -> None:
    """Comes last, after what it imports."""
    async with serving() as peers:
        (answer,) = await ask(peers, question(file_containing_symbol=symbol))
        assert names(answer)[-1] == file


async def test_files_go_over_a_stream_once_unless_asked_for_again() -> None:
    async with serving() as peers:
        answers = await ask(
            peers,
            question(file_by_filename="model_config.proto"),
            question(file_by_filename="grpc_service.proto"),
            question(file_by_filename="grpc_service.proto"),
        )
        expected = [["model_config.proto"], ["grpc_service.proto"], ["grpc_service.proto"]]
        assert [names(answer) for answer in answers] == expected
        (answer,) = await ask(peers, question(file_by_filename="grpc_service.proto"))
        assert names(answer) == ["model_config.proto", "grpc_service.proto"]


async def test_extensions_there_are_none() -> None:
    async with serving() as peers:
        known, unknown, extension = await ask(
            peers,
            question(all_extension_numbers_of_type="inference.ModelConfig"),
            question(all_extension_numbers_of_type="other.Message"),
            question(file_containing_extension={"containing_type": "inference.ModelConfig", "extension_number": 5}),
        )
        numbers = known.all_extension_numbers_response
        assert (numbers.base_type_name, list(numbers.extension_number)) == ("inference.ModelConfig", [])
        assert unknown.error_response.error_code == extension.error_response.error_code == NOT_FOUND


NOWHERE: list[tuple[dict[str, Any], int]] = [
    ({"file_by_filename": "other.proto"}, NOT_FOUND),
    ({"file_by_filename": "../etc/passwd\0"}, NOT_FOUND),
    ({"file_by_filename": ""}, NOT_FOUND),
    ({"file_containing_symbol": "inference.GRPCInferenceService.Nothing"}, NOT_FOUND),
    ({"file_containing_symbol": "a" * 10_000}, NOT_FOUND),
    ({"file_containing_symbol": "."}, NOT_FOUND),
    ({}, INVALID_ARGUMENT),
]


@pytest.mark.parametrize(("fields", "code"), NOWHERE)
async def test_what_is_not_there(fields: dict[str, Any], code: int) -> None:
    """Is an answer; the stream goes on."""
    async with serving() as peers:
        wrong, right = await ask(peers, question(**fields), question(list_services=""))
        assert wrong.error_response.error_code == code
        assert len(wrong.error_response.error_message) < 300
        assert right.HasField("list_services_response")


async def test_questions_that_are_too_large() -> None:
    """They come back in the answer."""
    data = question(file_by_filename="a" * 70_000).SerializeToString()
    async with serving() as peers:
        stream = await peers.client.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        await peers.client.send(stream, framed(data), end=True)
        assert (await peers.client.finish(stream)).status == RESOURCE_EXHAUSTED
