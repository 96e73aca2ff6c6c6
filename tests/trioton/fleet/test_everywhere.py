"""Loads and unloads on all replicas or none, over replicas that answer as they are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import h11
import msgspec
import pytest
import trio

from trioton.fleet.control_http import change_of
from trioton.fleet.driver import Address, Running
from trioton.fleet.everywhere import Everywhere
from trioton.fleet.haproxy_commands import Role
from trioton.fleet.http_call import Answer, CallFailed
from trioton.fleet.model_records import ModelRequest
from trioton.fleet.replicas import Generation, Phase, Registry, Replica
from trioton.fleet.words import ServerWords

LOAD, UNLOAD = ModelRequest("m", is_load=True), ModelRequest("m", is_load=False)
OVERRIDE = ModelRequest("m", is_load=True, body=b'{"parameters":{"config":"{}"}}')


@dataclass
class FakeReplica(Running):
    """A server that knows loads only. `fails` are the targets that it refuses; `ready` are its models."""

    address: Address
    about: str = "fake"
    ready: set[str] = field(default_factory=set)
    fails: set[str] = field(default_factory=set)
    calls: list[tuple[str, bytes, str]] = field(default_factory=list)

    def answer(self, target: str, headers: dict[bytes, bytes], body: bytes) -> tuple[int, object]:
        if target == "/v2/repository/index":
            if headers.get(b"authorization") == b"Bearer stranger" or b"content-encoding" in headers:
                return 403, {"error": "not with this key"}
            return 200, [{"name": name, "version": "1", "state": "READY"} for name in sorted(self.ready)]
        self.calls.append((target, body, headers.get(b"authorization", b"").decode()))
        if target in self.fails:
            return 400, {"error": "no memory"}
        if target.endswith("/load"):
            self.ready.add(target.split("/")[-2])
        elif target.endswith("/unload"):
            self.ready.discard(target.split("/")[-2])
        return 200, {}

    async def serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        target, headers, body = "", dict[bytes, bytes](), b""
        async with stream:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some())
                elif isinstance(event, h11.Request):
                    target, headers = event.target.decode(), dict(event.headers)
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
            status, answer = self.answer(target, headers, body)
            content = msgspec.json.encode(answer)
            head = h11.Response(status_code=status, headers=[("content-length", str(len(content)))])
            parts = (head, h11.Data(content), h11.EndOfMessage())
            await stream.send_all(b"".join(connection.send(part) or b"" for part in parts))

    async def wait(self) -> str:
        await trio.sleep_forever()
        raise AssertionError

    def stop(self) -> None: ...

    def kill(self) -> None: ...


@dataclass
class Fleet:
    everywhere: Everywhere
    registry: Registry
    replicas: list[FakeReplica]
    nursery: trio.Nursery

    async def add(self, phase: Phase = Phase.SERVING) -> tuple[Replica, FakeReplica]:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        fake = FakeReplica(Address("127.0.0.1", port, 0, 0))
        self.nursery.start_soon(partial(trio.serve_listeners, fake.serve, listeners))
        replica = self.registry.add(Generation(1, ServerWords(())), Role.MEMBER, 0.0)
        replica.running = fake
        self.registry.advance(replica, phase)
        self.replicas.append(fake)
        return replica, fake


@asynccontextmanager
async def fleet(count: int = 3) -> AsyncIterator[Fleet]:
    registry = Registry(8)
    async with trio.open_nursery() as nursery:
        made = Fleet(Everywhere(registry, lambda: [(b"authorization", b"Bearer fleet")]), registry, [], nursery)
        for _ in range(count):
            await made.add()
        yield made
        nursery.cancel_scope.cancel()


async def test_a_load_reaches_all_with_the_headers_of_its_caller() -> None:
    async with fleet() as made:
        report = await made.everywhere.change(OVERRIDE, [(b"authorization", b"Bearer caller")])
        assert (report.status, set(report.replicas.values())) == (200, {"loaded"})
        assert [each.calls for each in made.replicas] == [[(OVERRIDE.target, OVERRIDE.body, "Bearer caller")]] * 3


async def test_names_of_models_are_encoded_for_replicas() -> None:
    async with fleet(1) as made:
        await made.everywhere.change(ModelRequest("a b/ü?", is_load=True))
        assert [target for target, _, _ in made.replicas[0].calls] == ["/v2/repository/models/a%20b%2F%C3%BC%3F/load"]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (b"/v2/repository/models/m/load", ("m", True)),
        (b"/v2/repository/models/a%20b%2Fc/unload", ("a b/c", False)),
        (b"/v2/%72epository/models/%6d/%6Coad", ("m", True)),
        (b"/v2/repository/models/m/load/", None),
        (b"/v2/repository/models//load", None),
        (b"/v2/repository%2Fmodels/m/load", None),
        (b"/v2/repository/index", None),
    ],
)
def test_loads_are_known_by_their_paths(path: bytes, change: tuple[str, bool] | None) -> None:
    assert change_of(path) == change


async def test_who_may_not_load_is_told_so_by_a_replica() -> None:
    async with fleet() as made:
        assert await made.everywhere.refusal([(b"authorization", b"Bearer caller")]) is None
        refusal = await made.everywhere.refusal([(b"authorization", b"Bearer stranger")])
        assert isinstance(refusal, Answer)
        assert (refusal.status, refusal.body) == (403, b'{"error":"not with this key"}')


async def test_what_says_how_a_body_is_written_is_left_out_of_the_question() -> None:
    async with fleet() as made:
        assert await made.everywhere.refusal([(b"Content-Encoding", b"gzip")]) is None


async def test_nobody_is_let_in_where_no_replica_can_be_asked() -> None:
    async with fleet(0) as made:
        assert isinstance(await made.everywhere.refusal([]), CallFailed)


async def test_a_load_that_fails_somewhere_is_undone_everywhere() -> None:
    async with fleet() as made:
        made.replicas[1].fails.add(LOAD.target)
        report = await made.everywhere.change(LOAD)
        assert report.status == 400
        assert report.error == "failed to load 'm' on 1 of 3 replicas: no memory"
        assert report.replicas == {
            "replica-1": "loaded, then unloaded again",
            "replica-2": "no memory",
            "replica-3": "loaded, then unloaded again",
        }
        assert [each.ready for each in made.replicas] == [set(), set(), set()]


async def test_an_unload_that_fails_somewhere_brings_the_same_load_back() -> None:
    async with fleet(2) as made:
        await made.everywhere.change(OVERRIDE)
        made.replicas[0].fails.add(UNLOAD.target)
        report = await made.everywhere.change(UNLOAD)
        assert report.replicas["replica-2"] == "unloaded, then loaded as before"
        assert made.replicas[1].calls[-1] == (OVERRIDE.target, OVERRIDE.body, "Bearer fleet")
        assert [each.ready for each in made.replicas] == [{"m"}, {"m"}]


async def test_a_load_that_fails_brings_the_load_before_back() -> None:
    async with fleet(2) as made:
        await made.everywhere.change(LOAD)
        made.replicas[0].fails.add(LOAD.target)
        report = await made.everywhere.change(OVERRIDE)
        assert report.replicas["replica-2"] == "loaded, then loaded as before"
        assert made.replicas[1].calls[-1][1] == b""
        assert made.replicas[0].ready == {"m"}  # it served on


async def test_what_came_from_the_repository_is_kept() -> None:
    async with fleet(2) as made:
        for each in made.replicas:
            each.ready.add("m")
        made.replicas[0].fails.add(LOAD.target)
        report = await made.everywhere.change(LOAD)
        assert report.replicas["replica-2"] == "loaded, then kept, as it was loaded from the repository before"
        assert [each.ready for each in made.replicas] == [{"m"}, {"m"}]


async def test_later_replicas_get_the_same() -> None:
    async with fleet(1) as made:
        other = ModelRequest("other", is_load=False)
        for request in (LOAD, OVERRIDE, other):
            await made.everywhere.change(request)
        replica, fake = await made.add(Phase.STARTING)
        assert await made.everywhere.catch_up(replica) == ""
        assert fake.calls == [(OVERRIDE.target, OVERRIDE.body, "Bearer fleet"), (other.target, b"", "Bearer fleet")]
        fake.fails.add(other.target)
        assert await made.everywhere.catch_up(replica) == f"{other.target}: no memory"


async def test_a_failed_load_is_not_given_to_later_ones() -> None:
    async with fleet(2) as made:
        made.replicas[0].fails.add(LOAD.target)
        await made.everywhere.change(LOAD)
        replica, fake = await made.add(Phase.STARTING)
        await made.everywhere.catch_up(replica)
        assert fake.calls == []


async def test_one_that_has_ended_meanwhile_does_not_count() -> None:
    async with fleet(2) as made:
        gone = made.registry.serving()[0]
        assert isinstance(gone.running, FakeReplica)
        answer = gone.running.answer

        def dies(target: str, headers: dict[bytes, bytes], body: bytes) -> tuple[int, object]:
            made.registry.remove(gone)
            return 500, answer(target, headers, body)[1]

        gone.running.answer = dies  # type: ignore[method-assign]
        report = await made.everywhere.change(LOAD)
        assert (report.status, report.replicas) == (200, {"replica-2": "loaded"})


async def test_without_replicas_nothing_can_be_done() -> None:
    async with fleet(0) as made:
        report = await made.everywhere.change(LOAD)
        assert (report.status, report.error) == (503, "no replica of the fleet serves")
        assert isinstance(await made.everywhere.ask("GET", "/v2", []), CallFailed)
        assert isinstance(await made.everywhere.broadcast("GET", "/v2", [], b""), CallFailed)


async def test_the_first_refusal_answers_for_all() -> None:
    async with fleet() as made:
        made.replicas[2].fails.add("/v2/logging")
        answer = await made.everywhere.broadcast("POST", "/v2/logging", [], b"{}")
        assert isinstance(answer, Answer)
        assert (answer.status, answer.body) == (400, b'{"error":"no memory"}')
        assert all(len(each.calls) == 1 for each in made.replicas)
