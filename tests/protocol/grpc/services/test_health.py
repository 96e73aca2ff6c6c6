"""Health, of each service and of the server as a whole, asked for and watched."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.grpc.call.stream import SHUTTING_DOWN
from protocol.grpc.generated.grpc.health.v1 import HealthCheckRequest, HealthCheckResponse
from protocol.grpc.generated.grpc.health.v1 import HealthCheckResponseServingStatus as ServingStatus
from protocol.grpc.services.handlers import SERVICES
from tests.protocol.grpc.caller import Caller, serving
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.harness import NOT_FOUND, UNAVAILABLE

PATH = "/grpc.health.v1.Health"


async def check(peers: Caller, service: str = "") -> ServingStatus:
    response = await peers.client.call(f"{PATH}/Check", HealthCheckRequest(service).SerializeToString())
    assert response.status == 0, response.message
    return HealthCheckResponse.parse(response.messages[0]).status


async def watch(peers: Caller, service: str = "") -> int:
    stream = await peers.client.open(f"{PATH}/Watch")
    await peers.client.send(stream, framed(HealthCheckRequest(service).SerializeToString()), end=True)
    return stream


def seen(peers: Caller, stream: int) -> list[str | None]:
    found = [HealthCheckResponse.parse(message) for message in peers.client.responses[stream].messages]
    return [one.status.name for one in found]


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService"])
async def test_the_server_serves_while_it_is_ready(service: str) -> None:
    """Not while a model is missing, and not while the server starts or stops."""
    async with serving() as peers:
        assert await check(peers, service) is ServingStatus.SERVING
        peers.core.is_complete = False
        assert await check(peers, service) is ServingStatus.NOT_SERVING
        peers.core.is_complete, peers.core.is_up = True, False
        assert await check(peers, service) is ServingStatus.NOT_SERVING


@pytest.mark.parametrize("service", SERVICES[1:])
async def test_services_that_need_no_model_serve_always(service: str) -> None:
    async with serving() as peers:
        peers.core.is_complete = False
        assert await check(peers, service) is ServingStatus.SERVING


async def test_unknown_services() -> None:
    """Check fails, Watch says so and goes on."""
    async with serving() as peers:
        response = await peers.client.call(f"{PATH}/Check", HealthCheckRequest("other").SerializeToString())
        assert (response.status, response.message) == (NOT_FOUND, "unknown service 'other'")
        stream = await watch(peers, "other")
        while not peers.client.responses[stream].data:
            await peers.client.read()
        assert seen(peers, stream) == ["SERVICE_UNKNOWN"]
        assert not peers.client.responses[stream].has_ended


async def test_watching(autojump_clock: trio.testing.MockClock) -> None:
    """One message at once, and one for each change."""
    async with serving() as peers:
        stream = await watch(peers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peers.client.read_to_end)
            await trio.sleep(10)
            assert seen(peers, stream) == ["SERVING"]
            peers.core.is_complete = False
            await trio.sleep(10)
            assert seen(peers, stream) == ["SERVING", "NOT_SERVING"]
            peers.core.is_complete = True
            await trio.sleep(10)
            assert seen(peers, stream) == ["SERVING", "NOT_SERVING", "SERVING"]
            peers.connection.drain()
            await trio.testing.wait_all_tasks_blocked()
            assert seen(peers, stream)[3:] == ["NOT_SERVING"]
            response = peers.client.responses[stream]
            assert (response.status, response.message) == (UNAVAILABLE, SHUTTING_DOWN)
