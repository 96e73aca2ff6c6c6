"""Inference of an edge that has a link: what it runs itself, and what it has the core's edge answer."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
import trio

from protocol.access.control import AccessControl
from protocol.access.key_table import key_table
from protocol.access.keys import KeyRing
from protocol.access.told_keys import ToldKeys
from protocol.http.settings import HttpSettings
from protocol.limits.request_memory import RequestMemory
from protocol.log.access_log import AccessLog, AccessMode, AccessPolicy
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import FakeTraceControl, make_services
from tests.protocol.http.relay.conftest import Relayed, Relays
from tests.protocol.http.relay.test_app import in_pieces

INFER = "/v2/models/echo/infer"


def body(rows: int = 1, **more: Any) -> bytes:
    tensor = {"name": "IN", "shape": [rows, 4], "datatype": "FP32", "data": [1, 2, 3, 4] * rows}
    return json.dumps({"inputs": [tensor], **more}).encode()


def output_with(**parameters: Any) -> bytes:
    return body(outputs=[{"name": "OUT_IN", "parameters": parameters}])


@pytest.fixture
async def linked(nursery: trio.Nursery) -> FakeCore:
    """The core as the link shows it."""
    return FakeCore(tasks=nursery, class_labels=("cat", "dog"))


@pytest.fixture
async def edge(relays: Relays, linked: FakeCore) -> Relayed:
    services = make_services(linked, allow_shared_memory=False)
    return await relays(linked=services, settings=HttpSettings(max_input_size=1 << 20))


@pytest.mark.parametrize("kind", ["plain", "long", "gzip", "chunked", "binary", "classes"])
async def test_inference_is_run_here(edge: Relayed, linked: FakeCore, kind: str) -> None:
    rows, headers = 1, {"accept-encoding": "identity"}
    content: Any = body()
    if kind == "long":
        rows, content = 20_000, body(20_000)
        assert 1 << 17 < len(content) < 1 << 20
    elif kind == "gzip":
        content = gzip.compress(content)
        headers["content-encoding"] = "gzip"
    elif kind == "chunked":
        content = in_pieces(content)
    elif kind == "binary":
        content = bytes(16)
        headers["inference-header-content-length"] = "0"
    elif kind == "classes":
        content = output_with(classification=1)
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.post(INFER, content=content, headers=headers)
    assert answer.status_code == 200
    if kind == "classes":
        assert answer.json()["outputs"][0]["data"] == ["4.000000:3"]
    elif kind != "binary":
        assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4] * rows
    assert (len(linked.requests), edge.clients) == (1, [])


@pytest.mark.parametrize(
    ("content", "headers", "status", "text"),
    [
        (b"{", {}, 400, "failed to parse the request JSON buffer"),
        (gzip.compress(bytes(2 << 20)), {"content-encoding": "gzip"}, 413, "Decompressed data size exceeds"),
        (b"no gzip", {"content-encoding": "gzip"}, 400, ""),
        (bytes(2 << 20), {}, 413, "exceeds the maximum allowed"),
    ],
)
async def test_what_is_wrong_is_refused_here(
    edge: Relayed, linked: FakeCore, content: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.post(INFER, content=content, headers=headers)
    assert answer.status_code == status
    assert text in answer.json()["error"]
    assert (linked.requests, edge.clients) == ([], [])


@pytest.mark.parametrize(
    ("path", "content", "headers"),
    [
        ("/v2/repository/index", b"{}", {}),
        (INFER, body(), {"prefer": "respond-async"}),
        (INFER, body(), {"endpoint-load-metrics-format": "text"}),
        ("/v2/models/echo/generate", b'{"IN": [1, 2, 3, 4]}', {"prefer": "respond-async"}),
        ("/v2/models/echo/versions/x/infer", body(), {}),
    ],
)
async def test_all_else_is_relayed_by_its_head(
    edge: Relayed, linked: FakeCore, path: str, content: bytes, headers: dict[str, str]
) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as client:
        await client.post(path, content=content, headers=headers)
    assert (linked.requests, len(edge.clients)) == ([], 1)


async def test_other_methods_are_refused_by_the_core(edge: Relayed) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.get(INFER)
    assert (answer.status_code, answer.headers["allow"], len(edge.clients)) == (405, "POST", 1)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_regions_of_shared_memory_are_the_cores(edge: Relayed, linked: FakeCore, coding: str) -> None:
    content = output_with(shared_memory_region="there", shared_memory_byte_size=16)
    headers = {"x-request-id": "mine"}
    if coding == "gzip":
        content = gzip.compress(content)
        headers["content-encoding"] = "gzip"
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.post(INFER, content=content, headers=headers)
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "Unable to find shared memory region: 'there'", "request_id": "mine"},
    )
    assert answer.headers["x-request-id"] == "mine"
    assert (linked.requests, len(edge.clients)) == ([], 1)


async def test_a_body_that_is_large_for_this_edge_is_relayed_as_it_comes(relays: Relays, linked: FakeCore) -> None:
    services = replace(make_services(linked), memory=RequestMemory(4000))
    edge = await relays(linked=services)
    async with httpx.AsyncClient(base_url=edge.url) as client:
        small = await client.post(INFER, content=body(10))
        assert (small.status_code, len(edge.clients)) == (200, 0)
        large = await client.post(INFER, content=body(100), headers={"accept-encoding": "identity"})
    assert (large.status_code, len(edge.clients)) == (200, 1)
    assert len(linked.requests) == 1


async def test_traced_requests_are_answered_here(relays: Relays, linked: FakeCore) -> None:
    control = FakeTraceControl(is_on=True)
    edge = await relays(linked=make_services(linked, trace=control))
    async with httpx.AsyncClient(base_url=edge.url) as client:
        assert (await client.post(INFER, content=body())).status_code == 200
        assert (len(linked.requests), edge.clients) == (1, [])
        (trace,) = control.traces
        assert linked.requests[0].trace is trace
        assert trace.ends == 1
        content = output_with(shared_memory_region="there", shared_memory_byte_size=16)
        await client.post(INFER, content=content)
    assert [each.ends for each in control.traces] == [1, 0]  # the core has one of the other, perhaps


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
async def test_generate_is_run_here(edge: Relayed, linked: FakeCore, call: str) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as client:
        answer = await client.post(f"/v2/models/echo/{call}", content=b'{"IN": [1, 2, 3, 4]}')
    assert answer.status_code == 200
    assert b"1.0,2.0,3.0,4.0" in answer.content
    assert edge.clients == []


RING = KeyRing.parse(
    """
    keys.alice = { key = "alice-0123456789abcdef", allow = ["inference"] }
    keys.bob = { key = "bob-0123456789abcdef", allow = ["inference"], quota = "many" }
    keys.carol = { key = "carol-0123456789abcdef", allow = ["metadata"] }
    quotas.many.requests = { limit = 100, seconds = 60 }
    """,
    source="keys.toml",
)


class Keyed:
    """An edge with keys, and what it has written into its access log."""

    def __init__(self, relays: Relays, core: FakeCore) -> None:
        self.number = 0
        self.keys = ToldKeys(lambda: self.number)
        self.keys.take(key_table(RING, 0))
        self.lines: list[dict[str, Any]] = []
        services = make_services(core, allow_shared_memory=False)
        log = AccessLog(AccessPolicy(AccessMode.ALL), lambda line: self.lines.append(json.loads(line)))
        self._services = replace(services, access=AccessControl(keys=self.keys), access_log=log)
        self._relays = relays

    async def __aenter__(self) -> Keyed:
        self.edge = await self._relays(linked=self._services, keys=self.keys)
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ask(self, name: str, content: bytes | None = None) -> int:
        headers = {"authorization": f"Bearer {name}-0123456789abcdef"}
        async with httpx.AsyncClient(base_url=self.edge.url) as client:
            return (await client.post(INFER, content=content or body(), headers=headers)).status_code

    def used(self, name: str) -> tuple[int, int, float]:
        usage = self.keys.ledger.account(name).usage
        return usage.requests, usage.running, usage.bytes


async def test_callers_are_checked_charged_and_logged_here(relays: Relays, linked: FakeCore) -> None:
    async with Keyed(relays, linked) as keyed:
        assert [await keyed.ask(name) for name in ("alice", "carol", "nobody")] == [200, 403, 401]
        assert (len(linked.requests), keyed.edge.clients) == (1, [])
        requests, running, size = keyed.used("alice")
        assert (requests, running) == (1, 0)
        assert size > len(body())
        assert [(line["key"], line["status"]) for line in keyed.lines] == [
            ("alice", 200),
            ("carol", 403),
            ("anonymous", 401),
        ]
        assert linked.requests[0].charge is not None
        assert linked.requests[0].charge.account.name == "alice"


async def test_keys_that_come_in_are_the_cores(relays: Relays, linked: FakeCore) -> None:
    async with Keyed(relays, linked) as keyed:
        keyed.number = 1
        assert await keyed.ask("alice") == 200
        assert (linked.requests, keyed.lines) == ([], [])
        keyed.keys.take(key_table(RING, 1))
        assert await keyed.ask("alice") == 200
        assert len(linked.requests) == 1


async def test_what_the_core_answers_is_neither_charged_nor_logged_here(relays: Relays, linked: FakeCore) -> None:
    async with Keyed(relays, linked) as keyed:
        content = output_with(shared_memory_region="there", shared_memory_byte_size=16)
        assert await keyed.ask("alice", content) == 404
        assert (keyed.used("alice"), keyed.lines, linked.requests) == ((0, 0, 0), [], [])


@pytest.mark.parametrize("rest", [b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"content-length: 9\r\n\r\n{"])
async def test_what_the_core_never_hears_of_is_logged_here(relays: Relays, linked: FakeCore, rest: bytes) -> None:
    """A request to be relayed whose body is malformed, or does not come whole."""
    async with Keyed(relays, linked) as keyed:
        async with await trio.open_tcp_stream("127.0.0.1", keyed.edge.port) as client:
            await client.send_all(b"POST /v2/repository/index HTTP/1.1\r\nhost: here\r\n" + rest)
            await client.send_eof()
            answer = b"".join([each async for each in client])
        (line,) = keyed.lines
        if rest.startswith(b"transfer"):
            assert b" 400 " in answer
            assert f"x-request-id: {line['request_id']}\r\n".encode() in answer
            assert (line["status"], line["cancelled"]) == (400, False)
            assert "the size of a chunk is no hexadecimal number" in line["error"]
        else:
            assert (answer, line["status"], line["cancelled"]) == (b"", 499, True)
        assert (line["path"], line["key"], keyed.edge.clients) == ("/v2/repository/index", "anonymous", [])
