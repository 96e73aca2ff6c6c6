"""`/v1/chat/completions` through the application: bytes of streams, errors, and what a model is asked."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import trio
import trio.testing

from protocol.errors import Internal, InvalidArgument, Unavailable
from protocol.http.app import HttpApp
from protocol.http.openai.threads import LARGE_ABOVE
from protocol.http.settings import HttpSettings, OpenAISettings
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_services import FakeTraceControl, make_services
from tests.protocol.http.openai.handlers.scripted_core import (
    FOREVER,
    ScriptedCore,
    events,
    prompt_of,
    sampling_of,
)

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
ROLE = {"role": "assistant", "content": ""}


def make_app(core: ScriptedCore, openai: OpenAISettings | None = None, **services: Any) -> HttpApp:
    return HttpApp(make_services(core, **services), HttpSettings(openai=openai or OpenAISettings()))


def make_body(**members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **members}).encode()


async def post(core: ScriptedCore, headers: dict[str, str] | None = None, **members: Any) -> Answer:
    return await call(make_app(core), "POST", PATH, make_body(**members), headers)


async def test_a_whole_answer() -> None:
    core = ScriptedCore()
    answer = await post(core, {"x-request-id": "my-id"}, max_tokens=9, temperature=0, logprobs=True)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["x-request-id"] == "my-id"
    made = answer.json
    assert (made["id"], made["object"], made["model"]) == ("chatcmpl-my-id", "chat.completion", "m")
    (choice,) = made["choices"]
    assert choice["message"] == {"role": "assistant", "content": "abc", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert [token["token"] for token in choice["logprobs"]["content"]] == ["a", "b", "c"]
    assert made["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    (request,) = core.requests
    assert (prompt_of(request), request.id) == ("hi", "chatcmpl-my-id")
    assert sampling_of(request) == {"max_tokens": 9, "temperature": 0, "logprobs": 0}
    assert request.parameters == {"add_special_tokens": False}


async def test_a_schema_that_can_be_read_but_not_written_is_the_clients_mistake() -> None:
    """A large body is read in a thread, which has more of the stack left than the loop."""
    statuses = set()
    padding = b" " * LARGE_ABOVE
    for depth in range(860, 1001, 4):
        schema = b'{"a":' * depth + b"1" + b"}" * depth
        form = b'{"type": "json_schema", "json_schema": {"schema": %b}}' % schema
        body = (
            b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "response_format": %b}' % form + padding
        )
        answer = await call(make_app(ScriptedCore()), "POST", PATH, body)
        statuses.add(answer.status)
    assert statuses == {200, 400}


async def test_the_bytes_of_a_stream() -> None:
    answer = await post(ScriptedCore(script=("a", "b")), {"x-request-id": "1"}, stream=True)
    assert answer.complete
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    created = json.loads(answer.body.split(b"\n\n")[0][6:])["created"]
    head = f'data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":{created},"model":"m","choices":'
    assert answer.body.decode() == (
        f'{head}[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'{head}[{{"index":0,"delta":{{"content":"a"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'{head}[{{"index":0,"delta":{{"content":"b"}},"logprobs":null,"finish_reason":"stop"}}]}}\n\n'
        f"data: [DONE]\n\n"
    )


async def test_usage_of_a_stream() -> None:
    answer = await post(ScriptedCore(), stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events(answer.body)
    assert [chunk["usage"] for chunk in chunks] == [None] * 4
    assert (last["choices"], done) == ([], "[DONE]")
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, done = events((await post(ScriptedCore(), stream=True, stream_options=options)).body)
    assert [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in chunks] == [None, 1, 2, 3]


async def test_logprobs_of_a_stream() -> None:
    answer = await post(ScriptedCore(), stream=True, logprobs=True, top_logprobs=1)
    role, *chunks, _ = events(answer.body)
    assert role["choices"][0]["logprobs"] is None
    found = [chunk["choices"][0]["logprobs"]["content"] for chunk in chunks]
    assert [[token["token"] for token in tokens] for tokens in found] == [["a"], ["b"], ["c"]]


async def test_many_choices() -> None:
    core = ScriptedCore(finish_reason="length")
    made = (await post(core, n=3, seed=7)).json
    assert [choice["index"] for choice in made["choices"]] == [0, 1, 2]
    assert {choice["finish_reason"] for choice in made["choices"]} == {"length"}
    assert made["usage"] == {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    assert sorted(sampling_of(request)["seed"] for request in core.requests) == [7, 8, 9]


async def test_many_choices_of_a_stream_have_their_index() -> None:
    *chunks, done = events((await post(ScriptedCore(), n=2, stream=True)).body)
    assert done == "[DONE]"
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["delta"] for choice in own] == [ROLE, {"content": "a"}, {"content": "b"}, {"content": "c"}]
        assert [choice["finish_reason"] for choice in own] == [None, None, None, "stop"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"), [(InvalidArgument("no"), 400), (Unavailable("no"), 503), (Internal("no"), 500)]
)
async def test_an_error_before_the_first_token_is_a_reply(error: Exception, status: int, stream: bool) -> None:
    answer = await post(ScriptedCore(script=(error,)), stream=stream)
    assert (answer.status, answer.json["error"]["message"], answer.json["detail"]) == (status, "no", "no")
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize("number", [1, 2])
async def test_an_error_after_the_first_token_is_the_last_event(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """Without `[DONE]`: who does not know of such events must not take the answer for whole."""
    answer = await post(ScriptedCore(script=("a", Internal("the engine is gone"))), stream=True, n=number)
    assert (answer.status, answer.complete) == (200, True)
    *_, last = events(answer.body)
    assert last == {
        "error": {"message": "the engine is gone", "type": "server_error", "param": None, "code": "internal_error"},
        "request_id": answer.headers["x-request-id"],
    }
    assert "OpenAI stream failed: model 'm', version 'latest'" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_defect_is_500(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        answer = await post(ScriptedCore(script=(ValueError("oops"),)), stream=stream)
    assert (answer.status, answer.json["error"]["message"]) == (500, "internal error: ValueError: oops")


async def test_a_client_that_leaves_cancels_every_inference() -> None:
    core = ScriptedCore(script=("a", FOREVER))
    exchange = Exchange("POST", PATH, make_body(stream=True, n=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, make_app(core))
        while core.sent < 2:
            await trio.testing.wait_all_tasks_blocked()
        exchange.disconnect.set()
        await core.cancelled.wait()


async def test_comments_keep_a_silent_stream_alive(autojump_clock: trio.testing.MockClock) -> None:
    core = ScriptedCore(script=(FOREVER,))
    exchange = Exchange("POST", PATH, make_body(stream=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, make_app(core, OpenAISettings(keep_alive=10)))
        await core.started.wait()  # the template is rendered in a thread, for which the clock does not wait
        await trio.sleep(35)
        exchange.disconnect.set()
    assert exchange.answer.body == b": keep-alive\n\n" * 3
    assert exchange.answer.status == 200


async def test_adapters_go_to_the_model() -> None:
    core = ScriptedCore()
    assert (await post(core, model="poet")).json["model"] == "poet"
    assert sampling_of(core.requests[0]) == {"lora_name": "poet"}


@pytest.mark.parametrize(
    ("members", "status", "param"),
    [
        ({"model": "nope"}, 404, "model"),
        ({"model": "echo"}, 400, "model"),
        ({"messages": []}, 400, "messages"),
        ({"stream_options": {}}, 400, "stream_options"),
        ({"functions": []}, 400, "functions"),
        ({"priority": -1}, 400, "priority"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tool_choice"),
    ],
)
async def test_what_is_refused(members: dict[str, Any], status: int, param: str) -> None:
    core = ScriptedCore()
    answer = await post(core, **members)
    assert (answer.status, answer.json["error"]["param"]) == (status, param)
    assert core.requests == []


async def test_strict_servers_refuse_what_they_do_not_know() -> None:
    app = make_app(ScriptedCore(), OpenAISettings(strict=True))
    answer = await call(app, "POST", PATH, make_body(what=1))
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"] == ["body", "what"]
    assert (await call(make_app(ScriptedCore()), "POST", PATH, make_body(what=1))).status == 200


async def test_default_lengths() -> None:
    core = ScriptedCore()
    app = make_app(core, OpenAISettings(default_max_tokens=16))
    lengths: tuple[dict[str, int], ...] = ({}, {"max_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 4})
    for members in lengths:
        await call(app, "POST", PATH, make_body(**members))
    assert [sampling_of(request)["max_tokens"] for request in core.requests] == [16, 3, 4]


async def test_load_reports_for_balancers() -> None:
    headers = {"endpoint-load-metrics-format": "json"}
    app = make_app(ScriptedCore(), load_report=lambda model: {"queue": 2.0, "length": len(model)})
    for stream in (False, True):
        answer = await call(app, "POST", PATH, make_body(stream=stream), headers)
        assert answer.headers["endpoint-load-metrics"] == 'JSON {"named_metrics":{"queue":2.0,"length":1}}'


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "\u00e9"])
async def test_ids_that_no_header_carries_are_replaced(given: str) -> None:
    answer = await post(ScriptedCore(), request_id=given)
    assert len(answer.headers["x-request-id"]) == 32
    assert answer.json["id"] == f"chatcmpl-{answer.headers['x-request-id']}"


async def test_one_trace_for_a_call() -> None:
    control = FakeTraceControl(is_on=True)
    core = ScriptedCore()
    answer = await call(make_app(core, trace=control), "POST", PATH, make_body(n=2))
    assert answer.status == 200
    (trace,) = control.traces
    assert (trace.model, trace.ends) == ("m", 1)
    assert sorted(request.trace is trace for request in core.requests) == [False, True]
    assert trace.stamps[:2] == ["HTTP_RECV_START", "HTTP_RECV_END"]
    assert trace.stamps[-1] == "HTTP_SEND_END"


async def test_bodies_that_are_too_large() -> None:
    app = HttpApp(make_services(ScriptedCore()), HttpSettings(max_input_size=10))
    answer = await call(app, "POST", PATH, make_body())
    assert (answer.status, answer.json["error"]["code"]) == (413, "content_too_large")
