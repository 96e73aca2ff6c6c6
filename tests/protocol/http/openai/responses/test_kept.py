"""Responses that are kept: conversations, other callers, and those in the background, through the application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from protocol.access.control import AccessControl
from protocol.errors import Internal
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.responses.background import Responses
from protocol.services import EdgeServices
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_services import FakeTraceControl, make_services
from tests.protocol.http.openai.handlers.scripted_core import FOREVER, ScriptedCore, prompt_of
from tests.protocol.http.openai.responses.test_output import events

PATH = "/v1/responses"
KEYS = "\n".join(f'[keys.{name}]\nkey = "the-key-of-{name}-000"\nallow = ["inference"]' for name in ("alice", "bob"))


class Server:
    """The application, with responses that run, and a core that is scripted."""

    def __init__(self, services: EdgeServices, core: ScriptedCore) -> None:
        self.core = core
        self.app = HttpApp(services, HttpSettings())

    async def post(self, path: str = PATH, headers: dict[str, str] | None = None, **members: Any) -> Answer:
        body = json.dumps({"model": "m", "input": "hi", **members}).encode()
        return await call(self.app, "POST", path, body, headers)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return await call(self.app, "GET", f"{PATH}/{path}", b"", headers)


def make_server(core: ScriptedCore | None = None, responses: Responses | None = None, **services: Any) -> Server:
    core = core or ScriptedCore()
    made = make_services(core, **services)
    if responses is not None:
        object.__setattr__(made, "responses", responses)
    return Server(made, core)


@pytest.fixture
async def running() -> AsyncIterator[Responses]:
    made = Responses()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


async def test_a_response_is_kept() -> None:
    server = make_server()
    made = (await server.post()).json
    assert made["store"] is True
    assert (await server.get(made["id"])).json == made
    streamed = events((await server.post(stream=True)).body)[-1]["response"]
    assert (await server.get(streamed["id"])).json == streamed


async def test_it_is_kept_before_its_client_knows_that_it_is_complete() -> None:
    server = make_server()
    exchange = Exchange("POST", PATH, json.dumps({"model": "m", "input": "hi", "stream": True}).encode())
    found: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, server.app)
        while b"response.completed" not in exchange.answer.body:
            await trio.lowlevel.checkpoint()
        made = events(exchange.answer.body)[-1]["response"]
        found.append((await server.get(made["id"])).status)
    assert found == [200]


async def test_what_failed_is_kept_if_its_client_knows_its_id() -> None:
    server = make_server(ScriptedCore(script=("a", Internal("gone"))))
    failed = events((await server.post(stream=True)).body)[-1]["response"]
    assert (await server.get(failed["id"])).json["status"] == "failed"


async def test_a_conversation_goes_on() -> None:
    server = make_server()
    first = (await server.post(instructions="x:", input="1,")).json
    second = (await server.post(previous_response_id=first["id"], input="2,")).json
    third = await server.post(previous_response_id=second["id"], input=[{"role": "user", "content": "3"}])
    assert third.json["previous_response_id"] == second["id"]
    assert [prompt_of(request) for request in server.core.requests] == ["x:1,", "1,abc2,", "1,abc2,abc3"]


async def test_a_conversation_outlives_what_it_began_with() -> None:
    server = make_server()
    first = (await server.post()).json
    second = (await server.post(previous_response_id=first["id"])).json
    assert (await call(server.app, "DELETE", f"{PATH}/{first['id']}")).json == {
        "id": first["id"],
        "object": "response",
        "deleted": True,
    }
    assert (await server.get(first["id"])).status == 404
    answer = await server.post(previous_response_id=first["id"])
    assert (answer.status, answer.json["error"]["code"]) == (400, "previous_response_not_found")
    assert (await server.post(previous_response_id=second["id"])).status == 200


async def test_errors_count_from_what_was_given() -> None:
    server = make_server()
    first = (await server.post()).json
    answer = await server.post(previous_response_id=first["id"], input=[{"type": "x"}])
    assert answer.json["error"]["param"] == "input[0].type"


async def test_items_are_listed() -> None:
    server = make_server()
    first = (await server.post(input="1")).json
    second = (await server.post(previous_response_id=first["id"], input=[{"role": "user", "content": "2"}])).json
    listed = (await server.get(f"{second['id']}/input_items?order=asc")).json
    texts = [item["content"][0]["text"] for item in listed["data"]]
    ids = [item["id"] for item in listed["data"]]
    assert (texts, listed["has_more"], listed["first_id"], listed["last_id"]) == (
        ["1", "abc", "2"],
        False,
        ids[0],
        ids[2],
    )
    assert [item["type"] for item in listed["data"]] == ["message"] * 3
    last = (await server.get(f"{second['id']}/input_items?limit=1")).json
    assert ([item["id"] for item in last["data"]], last["has_more"]) == (ids[2:], True)
    rest = (await server.get(f"{second['id']}/input_items?after={ids[2]}")).json
    assert [item["id"] for item in rest["data"]] == [ids[1], ids[0]]
    for query in ("limit=0", "limit=x", "limit=--1", "limit=101", "order=up", "after=nothing", "&".join(["a=b"] * 40)):
        assert (await server.get(f"{second['id']}/input_items?{query}")).status == 400


async def test_what_is_not_to_be_kept_is_not() -> None:
    server = make_server()
    made = (await server.post(store=False)).json
    assert made["store"] is False
    assert (await server.get(made["id"])).status == 404
    off = make_server(responses=Responses(0))
    made = (await off.post(store=True)).json
    assert made["store"] is False
    assert (await off.get(made["id"])).status == 404
    for members in ({"background": True}, {"previous_response_id": made["id"]}):
        assert (await off.post(**members)).status == 400
    small = make_server(responses=Responses(100))
    assert (await small.post()).json["store"] is False


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer the-key-of-{name}-000"}


async def test_a_response_is_its_keys_alone(running: Responses) -> None:
    server = make_server(ScriptedCore(script=(FOREVER,)), running, access=AccessControl(keys=ChangingKeys(KEYS)))
    made = (await server.post(headers=key("alice"), background=True)).json
    path = f"{PATH}/{made['id']}"
    for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"), ("GET", f"{path}/input_items")):
        answer = await call(server.app, method, where, b"", key("bob"))
        assert (answer.status, answer.json["error"]["message"]) == (404, f"Response with id '{made['id']}' not found.")
        assert (await call(server.app, method, where, b"", {})).status == 401
    other = await server.post(headers=key("bob"), previous_response_id=made["id"])
    assert other.json["error"]["message"] == f"Previous response with id '{made['id']}' not found."
    assert (await server.get(made["id"], key("alice"))).json["status"] == "queued"


async def test_a_response_in_the_background(running: Responses) -> None:
    server = make_server(responses=running)
    made = (await server.post(background=True)).json
    assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
    await trio.testing.wait_all_tasks_blocked()
    done = (await server.get(made["id"])).json
    assert (done["status"], done["output"][0]["content"][0]["text"]) == ("completed", "abc")
    assert (await server.post(previous_response_id=made["id"])).status == 200
    again = await server.post(f"{PATH}/{made['id']}/cancel")
    assert again.json == done


async def test_one_that_fails_in_the_background(running: Responses) -> None:
    for error in (Internal("gone"), ValueError("oops")):
        server = make_server(ScriptedCore(script=("a", error)), running)
        made = (await server.post(background=True)).json
        await trio.testing.wait_all_tasks_blocked()
        done = (await server.get(made["id"])).json
        assert (done["status"], done["error"]["code"]) == ("failed", "server_error")
        assert done["output"][0]["content"][0]["text"] == "a"


async def test_one_that_is_cancelled(running: Responses) -> None:
    server = make_server(ScriptedCore(script=("a", FOREVER)), running)
    made = (await server.post(background=True)).json
    await trio.testing.wait_all_tasks_blocked()
    assert (await server.get(made["id"])).json["status"] == "in_progress"
    assert (await server.post(previous_response_id=made["id"])).json["error"]["param"] == "previous_response_id"
    cancelled = (await server.post(f"{PATH}/{made['id']}/cancel")).json
    assert (cancelled["status"], cancelled["output"][0]["content"][0]["text"]) == ("cancelled", "a")
    assert server.core.cancelled.is_set()
    assert (await server.get(made["id"])).json == cancelled


async def test_one_that_is_forgotten_is_stopped(running: Responses) -> None:
    server = make_server(ScriptedCore(script=("a", FOREVER)), running)
    made = (await server.post(background=True)).json
    await trio.testing.wait_all_tasks_blocked()
    assert (await call(server.app, "DELETE", f"{PATH}/{made['id']}")).status == 200
    assert server.core.cancelled.is_set()
    assert (await server.get(made["id"])).status == 404


async def test_only_what_runs_by_itself_is_cancelled() -> None:
    server = make_server()
    made = (await server.post()).json
    assert (await server.post(f"{PATH}/{made['id']}/cancel")).status == 400


async def test_events_of_one_in_the_background(running: Responses) -> None:
    server = make_server(responses=running)
    answer = await server.post(background=True, stream=True)
    found = events(answer.body)
    assert answer.complete
    assert [each["type"] for each in found][:3] == ["response.created", "response.queued", "response.in_progress"]
    assert found[-1]["type"] == "response.completed"
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    response_id = found[0]["response"]["id"]
    again = await server.get(f"{response_id}?stream=true")
    assert again.body == answer.body
    rest = await server.get(f"{response_id}?stream=true&starting_after=4")
    assert events(rest.body) == found[5:]
    assert events((await server.get(f"{response_id}?stream=true&starting_after=99")).body) == []
    assert (await server.get(f"{response_id}?stream=true&starting_after=x")).status == 400
    assert (await server.get(f"{response_id}?stream=true&starting_after=--1")).status == 400
    whole = (await server.post()).json
    assert (await server.get(f"{whole['id']}?stream=true")).status == 400


async def test_a_client_that_leaves_does_not_stop_one_in_the_background(running: Responses) -> None:
    server = make_server(ScriptedCore(script=("a", FOREVER)), running)
    body = json.dumps({"model": "m", "input": "hi", "background": True, "stream": True}).encode()
    exchange = Exchange("POST", PATH, body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, server.app)
        while b'"delta":"a"' not in exchange.answer.body:
            await trio.lowlevel.checkpoint()
        exchange.disconnect.set()
    assert not server.core.cancelled.is_set()
    response_id = events(exchange.answer.body)[0]["response"]["id"]
    assert (await server.get(response_id)).json["status"] == "in_progress"


async def test_traces_are_of_what_a_client_waits_for(running: Responses) -> None:
    control = FakeTraceControl(is_on=True)
    server = make_server(responses=running, trace=control)
    await server.post(background=True)
    await trio.testing.wait_all_tasks_blocked()
    assert control.traces == []
    await server.post()
    assert [trace.ends for trace in control.traces] == [1]
