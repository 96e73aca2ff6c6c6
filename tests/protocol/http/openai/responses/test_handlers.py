"""`/v1/responses` through the application: answers, streams, errors, and bodies of every kind."""

from __future__ import annotations

import json
from typing import Any

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Internal, Unavailable
from protocol.http.app import HttpApp
from protocol.http.openai.responses.requests import ResponsesRequest
from protocol.http.settings import HttpSettings, OpenAISettings
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import FOREVER, ScriptedCore, prompt_of, sampling_of
from tests.protocol.http.openai.responses.test_output import events

PATH = "/v1/responses"


def make_app(core: ScriptedCore, openai: OpenAISettings | None = None, **services: Any) -> HttpApp:
    return HttpApp(make_services(core, **services), HttpSettings(openai=openai or OpenAISettings()))


def make_body(**members: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **members}).encode()


async def post(core: ScriptedCore, headers: dict[str, str] | None = None, **members: Any) -> Answer:
    return await call(make_app(core), "POST", PATH, make_body(**members), headers)


async def test_a_whole_answer() -> None:
    core = ScriptedCore()
    answer = await post(core, {"x-request-id": "my-id"}, max_output_tokens=9, metadata={"a": "b"})
    assert (answer.status, answer.headers["x-request-id"]) == (200, "my-id")
    made = answer.json
    assert made["output"][0]["content"] == [{"type": "output_text", "text": "abc", "annotations": [], "logprobs": []}]
    assert made["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }
    assert (made["status"], made["model"], made["metadata"]) == ("completed", "m", {"a": "b"})
    (request,) = core.requests
    assert (prompt_of(request), request.id, sampling_of(request)) == ("hi", made["id"], {"max_tokens": 9})


async def test_an_id_cannot_be_guessed() -> None:
    """It opens what is kept of the response, and a client's own id would be known to others."""
    ids = {(await post(ScriptedCore(), {"x-request-id": "my-id"})).json["id"] for _ in range(2)}
    assert len(ids) == 2
    assert not any("my-id" in each for each in ids)


async def test_a_model_that_fails() -> None:
    answer = await post(ScriptedCore(script=(Unavailable("full"),)), stream=True)
    assert (answer.status, answer.json["error"]["message"]) == (503, "full")
    answer = await post(ScriptedCore(script=("a", Internal("gone"))), stream=True)
    assert (answer.status, answer.complete) == (200, True)
    *_, error, failed = events(answer.body)
    assert (error["type"], error["message"], error["code"]) == ("error", "gone", "internal_error")
    assert error["request_id"] == answer.headers["x-request-id"]
    assert failed["response"]["error"] == {"code": "server_error", "message": "gone"}
    assert failed["response"]["output"][0]["status"] == "incomplete"


async def test_a_model_that_says_nothing() -> None:
    made = [each["type"] for each in events((await post(ScriptedCore(script=()), stream=True)).body)]
    assert made == ["response.created", "response.in_progress", "response.completed"]


async def test_comments_keep_a_silent_stream_alive(autojump_clock: trio.testing.MockClock) -> None:
    core = ScriptedCore(script=(FOREVER,))
    exchange = Exchange("POST", PATH, make_body(stream=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, make_app(core, OpenAISettings(keep_alive=10)))
        await core.started.wait()
        await trio.sleep(25)
        exchange.disconnect.set()
    assert exchange.answer.body == b": keep-alive\n\n" * 2
    assert core.cancelled.is_set()


async def test_strict_servers_refuse_what_they_do_not_know() -> None:
    strict = make_app(ScriptedCore(), OpenAISettings(strict=True))
    assert (await call(strict, "POST", PATH, make_body(what=1))).status == 422
    assert (await post(ScriptedCore(), what=1)).status == 200


_WORDS = ["type", "text", "role", "content", "name", "call_id", "arguments", "output", "format", "schema", "x"]
_VALUES = ["message", "user", "function", "function_call", "function_call_output", "reasoning", "json_schema", "{}"]
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_WORDS), inner | st.sampled_from(_VALUES), max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(ResponsesRequest.__struct_fields__)), junk, max_size=4))
def test_a_body_of_any_kind_is_answered_or_refused(members: dict[str, Any]) -> None:
    async def run() -> None:
        for path in (PATH, f"{PATH}/input_tokens"):
            answer = await call(make_app(ScriptedCore()), "POST", path, make_body(**members))
            if answer.status != 200:
                # No server runs here, in which a response could run on.
                assert 400 <= answer.status < 500 or (answer.status == 503 and members.get("background") is True)
                assert answer.json["error"]["message"]

    trio.run(run)


@settings(deadline=None)
@given(st.binary(max_size=40) | junk.map(lambda value: json.dumps(value).encode()))
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    answer = trio.run(call, make_app(ScriptedCore()), "POST", PATH, body)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


async def test_what_an_answer_repeats_is_bounded() -> None:
    answer = await post(ScriptedCore(), instructions="x" * (1 << 20))
    assert (answer.status, answer.json["error"]["param"]) == (400, "instructions")
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    given: dict[str, Any] = {
        "instructions": "be",
        "tools": [tool],
        "tool_choice": "none",
        "temperature": 0.5,
        "user": "me",
    }
    made = (await post(ScriptedCore(), **given)).json
    assert {name: made[name] for name in given} == given
