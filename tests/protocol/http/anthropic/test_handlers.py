"""`/v1/messages` through the application: bytes of streams, errors, ids, and bodies of every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.access.control import AccessControl
from protocol.errors import Internal, Unavailable
from protocol.http.anthropic.codec.requests import CountTokensRequest, MessagesRequest
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings, OpenAISettings
from protocol.text.model import TextModel
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.http.anthropic.codec.test_blocks import events
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import FOREVER, TEMPLATE, ScriptedCore, prompt_of, sampling_of
from tests.protocol.http.openai.words import word_tokenizer

PATH = "/v1/messages"
MESSAGES = [{"role": "user", "content": "hi"}]


def make_app(core: ScriptedCore, openai: OpenAISettings | None = None, **services: Any) -> HttpApp:
    return HttpApp(make_services(core, **services), HttpSettings(openai=openai or OpenAISettings()))


def make_body(**members: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": MESSAGES, **members}).encode()


async def post(core: ScriptedCore, headers: dict[str, str] | None = None, **members: Any) -> Answer:
    return await call(make_app(core), "POST", PATH, make_body(**members), headers)


async def test_a_whole_message() -> None:
    core = ScriptedCore()
    answer = await post(core, {"x-request-id": "my-id", "anthropic-version": "2023-06-01"}, stop_sequences=["z"])
    assert (answer.status, answer.headers["request-id"]) == (200, "my-id")
    assert answer.json == {
        "id": "msg_my-id",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "abc", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    }
    (request,) = core.requests
    assert (prompt_of(request), request.id) == ("hi", "msg_my-id")
    assert sampling_of(request) == {"max_tokens": 9, "stop": ["z"], "include_stop_str_in_output": True}
    assert request.parameters == {"add_special_tokens": False, "return_details": True}


async def test_the_events_of_a_stream() -> None:
    answer = await post(ScriptedCore(script=("a", "b")), {"x-request-id": "1"}, stream=True)
    assert answer.complete
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    start, *block, delta, stop = events(answer.body)
    assert start["message"]["usage"]["input_tokens"] == 5
    assert (start["message"]["id"], start["message"]["content"], start["message"]["stop_reason"]) == ("msg_1", [], None)
    assert [each["type"] for each in block] == [
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
    ]
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 2
    assert stop == {"type": "message_stop"}


async def test_an_answer_without_a_text() -> None:
    assert (await post(ScriptedCore(script=("",)))).json["content"] == []
    start, delta, stop = events((await post(ScriptedCore(script=("",)), stream=True)).body)
    assert (start["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_sequence_is_told_and_not_shown(stream: bool) -> None:
    core = ScriptedCore(script=("one E", "ND two", FOREVER))
    answer = await post(core, stop_sequences=["END", "X"], stream=stream)
    assert core.cancelled.is_set()
    text: str
    if stream:
        *rest, delta, _ = events(answer.body)
        ended, text = delta["delta"], "".join(each.get("delta", {}).get("text", "") for each in rest)
    else:
        ended, text = answer.json, answer.json["content"][0]["text"]
    assert (ended["stop_reason"], ended["stop_sequence"], text) == ("stop_sequence", "END", "one ")


async def test_lengths() -> None:
    assert (await post(ScriptedCore(finish_reason="length"))).json["stop_reason"] == "max_tokens"
    text = TextModel("m", 1, chat_template=TEMPLATE, tokenizer=word_tokenizer(), context_length=4)
    core = ScriptedCore(texts=(text,), finish_reason="length")
    made = (await post(core, max_tokens=1000)).json
    assert made["stop_reason"] == "model_context_window_exceeded"
    assert sampling_of(core.requests[0])["max_tokens"] == 3


async def test_a_model_that_fails() -> None:
    answer = await post(ScriptedCore(script=(Unavailable("full"),)), stream=True)
    assert (answer.status, answer.json["error"]["type"]) == (529, "overloaded_error")
    answer = await post(ScriptedCore(script=("a", Internal("gone"))), stream=True)
    assert (answer.status, answer.complete) == (200, True)
    *_, last = events(answer.body)
    request_id = answer.headers["request-id"]
    assert last == {"type": "error", "error": {"type": "api_error", "message": "gone"}, "request_id": request_id}


async def test_pings_keep_a_silent_stream_alive(autojump_clock: trio.testing.MockClock) -> None:
    core = ScriptedCore(script=(FOREVER,))
    exchange = Exchange("POST", PATH, make_body(stream=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, make_app(core, OpenAISettings(keep_alive=10)))
        await core.started.wait()
        await trio.sleep(25)
        exchange.disconnect.set()
    assert exchange.answer.body == b'event: ping\ndata: {"type":"ping"}\n\n' * 2
    assert core.cancelled.is_set()


async def test_counted_tokens() -> None:
    text = TextModel("m", 1, chat_template=TEMPLATE, tokenizer=word_tokenizer())
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello world"}]}).encode()
    answer = await call(make_app(ScriptedCore(texts=(text,))), "POST", f"{PATH}/count_tokens", body)
    assert answer.json == {"input_tokens": 2}
    answer = await call(make_app(ScriptedCore()), "POST", f"{PATH}/count_tokens", body)
    assert (answer.status, answer.json["error"]["message"]) == (400, "model 'm' has no tokenizer")


async def test_the_key_may_come_as_anthropics_clients_send_it() -> None:
    keys = ChangingKeys('[keys.one]\nkey = "a-secret-of-some-length"\nallow = ["inference"]')
    app = make_app(ScriptedCore(), access=AccessControl(keys=keys))
    statuses = [
        (await call(app, "POST", PATH, make_body(), headers)).status
        for headers in (
            {"x-api-key": "a-secret-of-some-length"},
            {"authorization": "Bearer a-secret-of-some-length"},
            {"x-api-key": "another"},
            {"x-api-key": "a-secret-of-some-length", "authorization": "Bearer another"},
            {},
        )
    ]
    assert statuses == [200, 200, 401, 401, 401]
    other = await call(app, "POST", "/v1/completions", b"{}", {"x-api-key": "a-secret-of-some-length"})
    assert other.status == 401


async def test_strict_servers_refuse_what_they_do_not_know() -> None:
    strict = make_app(ScriptedCore(), OpenAISettings(strict=True))
    answer = await call(strict, "POST", PATH, make_body(what=1))
    assert (answer.status, answer.json["error"]["message"]) == (400, "'what': Extra inputs are not permitted")
    assert (await post(ScriptedCore(), what=1)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "kind"),
    [
        ("GET", PATH, b"", {}, 405, "invalid_request_error"),
        ("POST", f"{PATH}/batches", b"{}", {}, 404, "not_found_error"),
        ("POST", f"{PATH}/batches/x", b"{}", {}, 404, "not_found_error"),
        ("POST", PATH, b"x" * 200, {}, 413, "request_too_large"),
        ("POST", PATH, b"x", {"content-encoding": "what"}, 400, "invalid_request_error"),
        ("POST", PATH, b"x", {"content-encoding": "gzip"}, 400, "invalid_request_error"),
    ],
)
async def test_what_is_refused_before_it_is_read(
    method: str, path: str, body: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    app = HttpApp(make_services(ScriptedCore()), HttpSettings(max_input_size=100))
    answer = await call(app, method, path, body, headers)
    assert (answer.status, answer.json["error"]["type"]) == (status, kind)
    assert answer.json["request_id"] == answer.headers["request-id"]


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "name", "id", "input", "input_schema", "x"])
            | st.text(max_size=3),
            inner
            | st.sampled_from(["text", "user", "assistant", "tool_use", "tool_result", "thinking", "tool", "auto"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(MessagesRequest.__struct_fields__)), junk, max_size=4))
def test_a_body_of_any_kind_is_answered_or_refused_in_anthropics_form(members: dict[str, Any]) -> None:
    async def run() -> None:
        for path in (PATH, f"{PATH}/count_tokens"):
            answer = await call(make_app(ScriptedCore()), "POST", path, make_body(**members))
            if answer.status != 200:
                assert 400 <= answer.status < 500
                assert answer.json["type"] == "error"
                assert answer.json["error"]["type"] in ("invalid_request_error", "not_found_error")

    trio.run(run)


@settings(deadline=None)
@given(st.binary(max_size=40) | junk.map(lambda value: json.dumps(value).encode()))
def test_a_body_that_is_none_is_refused_in_anthropics_form(body: bytes) -> None:
    answer = trio.run(call, make_app(ScriptedCore()), "POST", PATH, body)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
def test_fields_are_those_of_the_official_client(kind: type) -> None:
    from anthropic.types import message_count_tokens_params, message_create_params

    official: Any = message_count_tokens_params.MessageCountTokensParams
    if kind is MessagesRequest:
        official = message_create_params.MessageCreateParamsStreaming
    assert set(official.__annotations__) <= set(kind.__struct_fields__)  # type: ignore[attr-defined]


def test_fields_of_the_official_clients_beta_are_known() -> None:
    from anthropic.types.beta import message_create_params

    official = message_create_params.MessageCreateParamsStreaming.__annotations__
    assert set(official) - {"betas"} <= set(MessagesRequest.__struct_fields__), "betas is a header"
