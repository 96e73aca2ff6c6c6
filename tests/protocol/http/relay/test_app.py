"""The relaying application between a client and the core's edge, and its connections to that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import h2.settings
import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.http.relay.upstream import Upstreams
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.http2_client import Http2Client
from tests.protocol.http.relay.conftest import Relays

BODY = {"inputs": [{"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


async def in_pieces(data: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_a_client_has_one_connection_and_keeps_it(relays: Relays) -> None:
    edge = await relays()
    async with httpx.AsyncClient(base_url=edge.url) as client:
        for _ in range(3):
            answer = await client.post("/v2/models/echo/infer", json=BODY, headers={"x-request-id": "mine"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
            assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]
        ready = await client.head("/v2")
        assert (ready.status_code, ready.content) == (200, b"")
        assert int(ready.headers["content-length"]) > 0
    async with httpx.AsyncClient(base_url=edge.url) as other:
        assert (await other.get("/v2/models/nope")).status_code == 404
    assert len(edge.clients) == 2
    assert len({*edge.clients}) == 2


async def test_bodies_in_chunks_arrive_whole(relays: Relays) -> None:
    edge = await relays()
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.post("/v2/models/echo/infer", content=in_pieces(json.dumps(BODY).encode()))
        assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]
    (request,) = edge.core.core.requests
    assert request.model_name == "echo"


async def test_streams_come_as_they_are_made(relays: Relays) -> None:
    edge = await relays()
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.post("/v2/models/many/generate_stream", json={"IN": [1, 2, 3, 4]})
    assert (answer.status_code, answer.text.count("data: ")) == (200, 3)


async def test_a_client_that_leaves_is_given_up_behind_it(relays: Relays) -> None:
    core = FakeCore()
    edge = await relays(make_services(core))
    async with httpx.AsyncClient(base_url=edge.url) as client:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: client.post("/v2/models/wait/infer", json=BODY))
                await core.started.wait()
                nursery.cancel_scope.cancel()
            await core.cancelled.wait()
    assert edge.upstreams.idle_count == 0


async def test_an_edge_of_the_core_that_is_gone(relays: Relays) -> None:
    edge = await relays()
    edge.core.scope.cancel()
    await edge.core.ended.wait()
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.get("/v2")
        assert (answer.status_code, answer.json()["error"]) == (
            503,
            "the server has not answered: the request was cut off",
        )
    assert edge.upstreams.idle_count == 0


async def test_an_answer_that_there_is_no_memory_for_is_passed_on_as_it_comes(relays: Relays) -> None:
    edge = await relays(memory=10)
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.get("/v2")
        assert (answer.status_code, answer.json()["name"]) == (200, "trioton")
        assert "content-length" not in answer.headers
        head = await client.head("/v2")
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(answer.content)))
    assert (edge.refused, len(edge.clients)) == ([], 1)


@pytest.mark.parametrize("framing", [b"content-length: 5", b"transfer-encoding: chunked"])
@pytest.mark.parametrize("expects", [b"", b"expect: 100-continue\r\n"])
async def test_a_short_body_that_does_not_come_takes_no_connection(
    relays: Relays, framing: bytes, expects: bytes
) -> None:
    edge = await relays()
    stream = await trio.open_tcp_stream("127.0.0.1", edge.port)
    async with stream:
        await stream.send_all(b"POST /v2/repository/index HTTP/1.1\r\nhost: x\r\n%b%b\r\n\r\n" % (expects, framing))
        if expects:
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await wait_all_tasks_blocked()
        assert edge.clients == []
        await stream.send_all(b"{}   " if framing.startswith(b"content") else b"2\r\n{}\r\n0\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        assert len(edge.clients) == 1


async def test_a_long_body_goes_on_as_it_comes(relays: Relays) -> None:
    edge = await relays()
    body = json.dumps(BODY).encode()
    async with await trio.open_tcp_stream("127.0.0.1", edge.port) as stream:
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (len(body) + (1 << 19))
        await stream.send_all(head + b" " * (1 << 18))
        await wait_all_tasks_blocked()
        assert len(edge.clients) == 1
        await stream.send_all(b" " * (1 << 18) + body)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_reads_no_answer_takes_no_connection(relays: Relays) -> None:
    edge = await relays()
    client = Http2Client(await trio.open_tcp_stream("127.0.0.1", edge.port))
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    await client.flush()
    for count in (1, 2):
        await client.start("GET", "/v2")
        await wait_all_tasks_blocked()
        assert edge.upstreams.idle_count == 1, count
    assert len(edge.clients) == 1
    await client.stream.aclose()


async def test_no_more_requests_are_with_the_core_than_may_be(relays: Relays) -> None:
    core = FakeCore()
    edge = await relays(make_services(core), most=1)
    async with httpx.AsyncClient(base_url=edge.url) as client:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: client.post("/v2/models/wait/infer", json=BODY))
                await core.started.wait()
                refused = await client.get("/v2")
                assert (refused.status_code, edge.refused) == (503, ["max_relayed_requests"])
                assert (await client.get("/v2/health/ready")).status_code == 200, "which has places of its own"
                assert "core answer 1 requests, which is the maximum" in refused.json()["error"]
                nursery.cancel_scope.cancel()
            await core.cancelled.wait()
        assert (await client.get("/v2")).status_code == 200


def long_upload(path: str = "/v2/models/echo/infer") -> tuple[bytes, bytes]:
    """The start of a request whose body is not read before the core hears of it, and its end."""
    end = json.dumps(BODY).encode()
    size = len(end) + (1 << 18)
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), size) + b" " * (1 << 18), end


async def test_bodies_that_do_not_come_leave_places_to_other_requests(relays: Relays) -> None:
    edge = await relays(most=4)
    start, end = long_upload()
    stalled = [await trio.open_tcp_stream("127.0.0.1", edge.port) for _ in range(2)]
    for each in stalled:
        await each.send_all(start)
    await wait_all_tasks_blocked()
    assert len(edge.clients) == 2
    refused = await trio.open_tcp_stream("127.0.0.1", edge.port)
    await refused.send_all(start)
    with trio.fail_after(30):
        answer = await refused.receive_some()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"the bodies of 2 requests" in answer
    assert edge.refused == ["max_relayed_requests"]
    async with httpx.AsyncClient(base_url=edge.url) as client:
        assert (await client.get("/v2")).status_code == 200
        assert (await client.post("/v2/models/echo/infer", json=BODY)).status_code == 200
        assert (await client.post("/v2/nowhere", json=BODY)).status_code == 404
        await stalled[0].send_all(end)
        assert (await stalled[0].receive_some()).startswith(b"HTTP/1.1 200 ")
        await stalled[1].aclose()
        await wait_all_tasks_blocked()
        for _ in range(3):
            answered = await client.post("/v2/models/echo/infer", content=b" " * (1 << 18) + end)
            assert answered.status_code == 200
    assert len(edge.refused) == 1
    for each in (stalled[0], refused):
        await each.aclose()


async def test_a_body_that_has_come_is_no_upload_any_more(relays: Relays) -> None:
    """However long the model takes."""
    core = FakeCore()
    edge = await relays(make_services(core), most=2)
    waiting = await trio.open_tcp_stream("127.0.0.1", edge.port)
    async with waiting:
        await waiting.send_all(b"".join(long_upload("/v2/models/wait/infer")))
        with trio.fail_after(60):
            await core.started.wait()
        async with httpx.AsyncClient(base_url=edge.url) as client:
            answer = await client.post("/v2/models/echo/infer", content=b" " * (1 << 19) + json.dumps(BODY).encode())
        assert answer.status_code == 200
        assert edge.refused == []


@pytest.mark.parametrize("expects", [b"", b"expect: 100-continue\r\n"])
@pytest.mark.parametrize(("target", "status"), [(b"POST /v2/nowhere", b"404"), (b"PUT /v2", b"405")])
async def test_what_has_no_route_is_refused_before_its_body(
    relays: Relays, target: bytes, status: bytes, expects: bytes
) -> None:
    edge = await relays()
    async with await trio.open_tcp_stream("127.0.0.1", edge.port) as stream:
        await stream.send_all(b"%b HTTP/1.1\r\nhost: x\r\n%bcontent-length: 5\r\n\r\n" % (target, expects))
        with trio.fail_after(30):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 %b " % status)


async def test_no_more_connections_are_kept_than_may_be() -> None:
    ends: list[trio.SocketStream] = []

    async def open_one(client: str) -> trio.SocketStream:
        own, its = trio.socket.socketpair()
        ends.append(trio.SocketStream(its))
        return trio.SocketStream(own)

    upstreams = Upstreams(open_one, most_idle=1)
    for count, client in enumerate(("a", "b")):
        upstream = await upstreams.take(client)
        upstream.begin("GET")
        await ends[count].send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert await upstream.response() is not None
        upstreams.give_back(upstream)
        assert upstreams.idle_count == 1
    assert await ends[0].receive_some() == b"", "of the client that was served last there may be more to come"
    upstream.close()
    for end in ends:
        await end.aclose()


async def test_connections_that_are_not_used_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    ends: list[trio.SocketStream] = []

    async def open_one(client: str) -> trio.SocketStream:
        own, its = trio.socket.socketpair()
        ends.append(trio.SocketStream(its))
        return trio.SocketStream(own)

    upstreams = Upstreams(open_one)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstreams.run)
        first, second = await upstreams.take("a"), await upstreams.take("a")
        for each, end in zip((first, second), ends, strict=True):
            each.begin("GET")
            await end.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            assert await each.response() is not None
            upstreams.give_back(each)
        assert upstreams.idle_count == 2
        other = await upstreams.take("b")
        assert other not in (first, second)
        assert await upstreams.take("a") is second, "the last one is the least likely to be closed"
        await wait_all_tasks_blocked()
        await trio.sleep(20)
        assert upstreams.idle_count == 0
        assert await ends[0].receive_some() == b""
        second.begin("GET")
        upstreams.give_back(second)  # not answered
        assert upstreams.idle_count == 0
        other.close()
        nursery.cancel_scope.cancel()
    for end in ends:
        await end.aclose()
