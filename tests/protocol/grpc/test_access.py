"""Who may make which call over gRPC: every call has a category, and the check comes before anything else."""

from __future__ import annotations

import pytest
import trio.testing

from protocol.access.categories import RESTRICTABLE, Category
from protocol.access.control import AccessControl
from protocol.access.restricted import GRPC_PROTOCOL, RestrictedApis
from protocol.grpc.access import CATEGORIES
from protocol.grpc.services.handlers import grpc_handlers
from protocol.grpc.settings import GrpcSettings
from protocol.services import EdgeServices
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.grpc.caller import serving
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.harness import UNAVAILABLE
from tests.protocol.grpc.inference.test_stream_infer import PATH
from tests.protocol.grpc.inference.test_stream_infer import request as stream_request

PERMISSION_DENIED, UNAUTHENTICATED = 7, 16
KEY = "a-key-of-enough-characters"
KEYS = f"""
[anonymous]
allow = ["health"]
[keys.alice]
key = "{KEY}"
allow = ["inference"]
"""


def restricted(*values: str) -> EdgeServices:
    return edge_services(access=AccessControl(RestrictedApis.parse(values, GRPC_PROTOCOL)))


def with_keys() -> EdgeServices:
    return edge_services(access=AccessControl(keys=ChangingKeys(KEYS)))


def test_every_call_has_a_category() -> None:
    """And no category is of a call that is not there."""
    assert set(grpc_handlers(edge_services(), GrpcSettings())) == set(CATEGORIES)
    assert set(CATEGORIES.values()) == set(RESTRICTABLE)


@pytest.mark.parametrize(("path", "category"), CATEGORIES.items(), ids=list(CATEGORIES))
async def test_each_call_is_behind_its_category(path: str, category: Category) -> None:
    """Refused by headers alone: the body is broken, or is never sent."""
    async with serving(restricted(f"{category}:key=value")) as peers:
        response = await peers.client.call(path, b"\xff", headers={})
        expected = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
        assert (response.status, response.message) == (UNAVAILABLE, expected)
        stream = await peers.client.open(path, {"triton-grpc-protocol-key": "Value"})
        assert (await peers.client.finish(stream)).message == expected
        passed = await peers.client.call(path, b"\xff", headers={"triton-grpc-protocol-key": "value"})
        assert "restricted" not in passed.message


@pytest.mark.parametrize("category", RESTRICTABLE)
async def test_other_categories_stay_open(category: Category) -> None:
    async with serving(restricted(f"{category}:key=value")) as peers:
        other = "ServerMetadata" if category is Category.HEALTH else "ServerLive"
        await peers.ask(other)


async def test_the_metadata_key_needs_its_prefix() -> None:
    async with serving(restricted("health:key=value")) as peers:
        peers.headers = {"key": "value"}
        assert (await peers.call("ServerLive")).status == UNAVAILABLE


async def test_bearer_keys() -> None:
    async with serving(with_keys()) as peers:
        await peers.ask("ServerLive")
        needed = "a valid key is needed, expecting header 'Authorization: Bearer <key>'"
        assert await peers.refusal("ModelInfer") == (UNAUTHENTICATED, needed)
        peers.headers = {"authorization": f"Bearer {KEY}x"}
        assert await peers.refusal("ModelInfer") == (UNAUTHENTICATED, needed)
        peers.headers = {"authorization": f"bearer {KEY}"}
        await peers.ask("ModelInfer")
        status, message = await peers.refusal("ServerMetadata")
        assert status == PERMISSION_DENIED
        assert message == "key 'alice' does not allow 'metadata' calls, which need the group 'metadata'"


async def test_an_unknown_call_is_unknown_to_everyone() -> None:
    async with serving(with_keys()) as peers:
        response = await peers.client.call("/inference.GRPCInferenceService/Nothing", b"")
        assert response.message == "unknown method '/inference.GRPCInferenceService/Nothing'"


async def test_a_key_that_is_taken_back_is_refused_at_once() -> None:
    """By calls on a connection that it has been used on, and by a stream that it has opened, whose requests end."""
    keys = ChangingKeys(KEYS)
    async with serving(edge_services(access=AccessControl(keys=keys))) as peers:
        peers.headers = {"authorization": f"Bearer {KEY}"}
        for _ in range(2):
            await peers.ask("ModelInfer")
        stream = await peers.client.open(PATH, peers.headers)
        await peers.client.send(stream, stream_request("a", "echo") + stream_request("b", "forever"))
        await trio.testing.wait_all_tasks_blocked()
        keys.change(KEYS.replace("alice", "bob"))  # the same key goes on
        keys.change(KEYS.replace('["inference"]', '["metadata"]'))
        response = await peers.client.finish(stream)
        assert (response.status, len(response.messages)) == (PERMISSION_DENIED, 1)
        assert "does not allow 'inference' calls" in response.message
        keys.change('[anonymous]\nallow = ["health"]')
        assert (await peers.refusal("ModelInfer"))[0] == UNAUTHENTICATED
        assert peers.core.cancelled == ["b"]
