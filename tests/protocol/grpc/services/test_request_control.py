"""Stopping requests by their id."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.messages import LATEST_VERSION
from protocol.proto import message_class
from tests.protocol.grpc.caller import Caller, serving
from tests.protocol.grpc.client import Response
from tests.protocol.grpc.harness import INVALID_ARGUMENT, NOT_FOUND

PATH = "/trioton.RequestControl/Cancel"


async def cancel(peers: Caller, **fields: str) -> Response:
    return await peers.client.call(PATH, message_class("trioton.CancelRequest")(**fields).SerializeToString())


@pytest.mark.parametrize(("text", "version"), [("", LATEST_VERSION), ("1", 1)])
async def test_requests_are_stopped_by_their_id(text: str, version: int) -> None:
    async with serving() as peers:
        response = await cancel(peers, model_name="echo", model_version=text, id="größe/ 1")
        assert response.status == 0, response.message
        answer: Any = message_class("trioton.CancelResponse").FromString(response.messages[0])
        assert answer.cancelled == 2
        assert peers.core.stopped == [("echo", "größe/ 1", version)]


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"model_name": "nope", "id": "a"}, NOT_FOUND, "Request for unknown model: 'nope' is not found"),
        ({"model_name": "echo"}, INVALID_ARGUMENT, "a request to cancel needs its id, got none for model 'echo'"),
        ({"model_name": "echo", "id": "a", "model_version": "x"}, INVALID_ARGUMENT, "not an integer"),
    ],
)
async def test_what_is_wrong(fields: dict[str, str], status: int, text: str) -> None:
    async with serving() as peers:
        response = await cancel(peers, **fields)
        assert response.status == status
        assert text in response.message
        assert peers.core.stopped == []
