"""The bounds on what request messages hold."""

from __future__ import annotations

import trio
from tritonclient.grpc import service_pb2

from protocol.errors import Overloaded, PayloadTooLarge
from protocol.grpc.call.receiving import CALL_MEMORY, ReceiveMemory
from protocol.limits.request_memory import RequestMemory
from tests.protocol.grpc.caller import SERVICE, serving
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.harness import RESOURCE_EXHAUSTED


def receive_memory(limit: int, server: RequestMemory) -> ReceiveMemory:
    return ReceiveMemory(limit, server, trio.CapacityLimiter(1))


async def test_bytes_count_while_they_are_held() -> None:
    """Also those that pass the limit, until they are given back."""
    server = RequestMemory(1000)
    memory = receive_memory(100, server)
    assert memory.take(60)
    assert memory.take(40)
    assert memory.left == 0
    assert not memory.take(1)
    assert memory.left == 0
    memory.give(61)
    assert memory.left == 60
    assert memory.take(60)
    assert server.held == 100
    memory.close()
    assert server.held == 0


async def test_connections_share_the_servers_limit() -> None:
    server = RequestMemory(100_000)
    one, other = (receive_memory(1_000_000, server) for _ in range(2))
    assert one.take(60_000)
    assert other.left == 40_000
    assert not other.take(50_000)
    assert other.left == 0
    one.close()
    assert other.left == 50_000


async def test_a_connection_may_always_hold_one_call_with_a_short_message() -> None:
    """It may ask for the server's health, however much the others send."""
    server = RequestMemory(100_000)
    one, other = (receive_memory(1_000_000, server) for _ in range(2))
    assert one.take(100_000)
    assert other.take(CALL_MEMORY)
    assert other.take(1024)
    assert not other.take(1)
    other.give(1025)
    assert not other.take(CALL_MEMORY), "a second call"


async def test_the_refusal_is_that_of_the_limit_which_is_nearer() -> None:
    server = RequestMemory(100)
    one, other = receive_memory(1000, server), receive_memory(30, server)
    other.take(31)
    limit, error = other.refusal(31)
    assert (limit, type(error)) == ("max_receive_memory", PayloadTooLarge)
    assert "limit of 30 bytes" in error.message
    one.take(70)
    limit, error = one.refusal(70)
    assert (limit, type(error)) == ("max_request_memory", Overloaded)
    assert type(one.refusal(101)[1]) is PayloadTooLarge


def request(model: str, size: int) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(size)])
    message.inputs.add(name="x", datatype="UINT8", shape=[size])
    encoded: bytes = message.SerializeToString()
    return encoded


async def test_a_call_is_refused_while_another_connection_holds_too_much() -> None:
    """And is taken when that one is gone, however it went."""
    services = edge_services(memory=RequestMemory(100_000))
    async with serving(services) as other:
        async with serving(services) as holder:
            await holder.client.start_call(f"{SERVICE}/ModelInfer", request("forever", 60_000))
            await holder.core.wait_for_in_flight(1)
            response = await other.client.call(f"{SERVICE}/ModelInfer", request("echo", 60_000))
            assert response.status == RESOURCE_EXHAUSTED
            assert response.message.startswith("the requests in flight hold the 100000 bytes that the server has")
            assert services.limits.counts() == {("grpc", "max_request_memory"): 1}
        with trio.fail_after(5):
            while services.memory.held:
                await trio.lowlevel.checkpoint()
        response = await other.client.call(f"{SERVICE}/ModelInfer", request("echo", 60_000))
        assert response.status == 0, response.message
    assert services.memory.held == 0
