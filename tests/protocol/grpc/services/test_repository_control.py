"""Repositories registered and dropped over gRPC."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from protocol.core import ModelRepository
from protocol.proto import message_class
from tests.protocol.grpc.caller import Caller, serving
from tests.protocol.grpc.client import Response
from tests.protocol.grpc.harness import INVALID_ARGUMENT


def repository(path: str, **names: str) -> Message:
    return message_class("trioton.ModelRepository")(path=path, model_names=names)


async def call(peers: Caller, name: str, **fields: Any) -> Response:
    request = message_class(f"trioton.Repository{name}Request")(**fields)
    return await peers.client.call(f"/trioton.RepositoryControl/{name}", request.SerializeToString())


async def listed(peers: Caller) -> list[Message]:
    response = await call(peers, "List")
    answer: Any = message_class("trioton.RepositoryListResponse").FromString(response.messages[0])
    return list(answer.repositories)


async def test_repositories_come_and_go() -> None:
    async with serving() as peers:
        assert await listed(peers) == [repository("/models")]
        response = await call(peers, "Register", repository=repository("/more", m="n"))
        assert response.status == 0, response.message
        assert peers.core.registered == [ModelRepository("/more", {"m": "n"})]
        assert await listed(peers) == [repository("/models"), repository("/more", m="n")]
        assert (await call(peers, "Unregister", path="/more")).status == 0
        assert peers.core.registered == []


async def test_a_registration_without_a_repository() -> None:
    async with serving() as peers:
        response = await call(peers, "Register")
        assert response.status == INVALID_ARGUMENT
        assert response.message == "failed to register '', repository not found"
