"""Anthropic's official client, unchanged: messages, streams, tools, thinking, parsing, errors, keys, leaving."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pydantic
import pytest

from tests.e2e.openai.test_client import HELLO
from tests.e2e.server_process import ServerProcess, eventually

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"name": "get_weather", "description": "Of a city", "input_schema": SCHEMA}


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


def ask(client: Any, text: str, **more: Any) -> Any:
    return client.messages.create(**{"model": "chat", "max_tokens": 100, "messages": say(text), **more})


def described(client: Any, text: str = "tell me", **more: Any) -> Any:
    """What the model was asked."""
    return json.loads(ask(client, text, **more).content[0].text)


def test_a_whole_message(client: Any) -> None:
    made = ask(client, "say hello")
    (block,) = made.content
    assert (block.type, block.text) == ("text", HELLO)
    assert (made.type, made.role, made.model, made.stop_reason) == ("message", "assistant", "chat", "end_turn")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (2, 5)
    assert made.id == f"msg_{made._request_id}"


def test_the_model_gets_its_template_and_its_parameters(client: Any) -> None:
    asked = described(
        client,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "me"},
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 3},
    )
    assert asked["prompt"] == "<system>Be brief.</end><user>tell me</end><assistant>"
    assert asked["sampling"] == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "max_tokens": 100,
    }


def test_a_stream(client: Any) -> None:
    with client.messages.stream(model="chat", max_tokens=100, messages=say("say hello")) as stream:
        texts = list(stream.text_stream)
        made = stream.get_final_message()
    assert texts == ["Hello", ",", " wor", "ld", "! \N{SMILING FACE WITH SMILING EYES}"]
    assert (made.content[0].text, made.stop_reason) == (HELLO, "end_turn")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (2, 5)


def test_the_events_of_a_stream(client: Any) -> None:
    kinds = [each.type for each in ask(client, "think", stream=True)]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "content_block_start",
        *["content_block_delta"] * 2,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_why_it_has_ended(client: Any) -> None:
    cut = ask(client, "say hello", max_tokens=2)
    assert (cut.content[0].text, cut.stop_reason) == ("Hello,", "max_tokens")
    stopped = ask(client, "say hello", stop_sequences=["x", " world"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == (
        "Hello,",
        "stop_sequence",
        " world",
    )
    with client.messages.stream(
        model="chat", max_tokens=100, messages=say("say hello"), stop_sequences=["ld"]
    ) as stream:
        made = stream.get_final_message()
    assert (made.content[0].text, made.stop_sequence) == ("Hello, wor", "ld")


def test_more_tokens_than_the_context_has_room_for(client: Any) -> None:
    """As clients ask that know no limits of local models."""
    assert ask(client, "say hello", max_tokens=8000).stop_reason == "end_turn"
    assert 200 < described(client, max_tokens=8000)["sampling"]["max_tokens"] < 256
    with pytest.raises(anthropic.BadRequestError, match="maximum context length is 40 tokens"):
        ask(client, "word " * 50, model="other")


def test_tools(client: Any) -> None:
    made = ask(client, "the weather", tools=[TOOL])
    text, call = made.content
    assert (text.text, call.type, call.name, call.input) == (
        "Let me see.",
        "tool_use",
        "get_weather",
        {"city": "Berlin"},
    )
    assert made.stop_reason == "tool_use"
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "sunny, tell me more"}],
    }
    answered = [
        *say("the weather"),
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result]},
    ]
    made = client.messages.create(
        model="chat", max_tokens=100, messages=answered, tools=[TOOL], tool_choice={"type": "none"}
    )
    assert made.stop_reason in ("end_turn", "tool_use")


def test_what_the_model_is_told_of_calls_and_results(client: Any) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "I ask."},
        {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Oslo"}},
    ]
    results = [{"type": "tool_result", "tool_use_id": "a", "content": "sunny"}, {"type": "text", "text": "tell me"}]
    told: Any = [
        *say("go"),
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": results},
    ]
    made = client.messages.create(model="chat", max_tokens=100, messages=told)
    assert json.loads(made.content[0].text)["prompt"] == (
        "<user>go</end><assistant>I ask.<call>Oslo</call></end><tool>sunny</end><user>tell me</end><assistant>"
    )


def test_tools_of_a_stream(client: Any) -> None:
    with client.messages.stream(model="chat", max_tokens=100, messages=say("the weather"), tools=[TOOL]) as stream:
        pieces = [each.partial_json for each in stream if each.type == "input_json"]
        made = stream.get_final_message()
    assert json.loads("".join(pieces)) == {"city": "Berlin"}
    assert [block.type for block in made.content] == ["text", "tool_use"]
    assert (made.content[1].input, made.stop_reason) == ({"city": "Berlin"}, "tool_use")


@pytest.mark.parametrize(
    ("text", "choice", "city"),
    [("call any", {"type": "any"}, "Rome"), ("call that", {"type": "tool", "name": "get_weather"}, "Oslo")],
)
def test_tools_that_have_to_be_called(client: Any, text: str, choice: Any, city: str) -> None:
    made = ask(client, text, tools=[TOOL], tool_choice=choice)
    (call,) = made.content
    assert (call.input, made.stop_reason) == ({"city": city}, "tool_use")


def test_thinking(client: Any) -> None:
    made = ask(client, "think", thinking={"type": "enabled", "budget_tokens": 1024})
    thought, answer = made.content
    assert (thought.type, thought.thinking, answer.text) == ("thinking", "Let me think.", "It is 42.")
    with client.messages.stream(model="chat", max_tokens=100, messages=say("think")) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].thinking == "Let me think."
    assert streamed.content[0].signature == thought.signature != ""
    hidden = ask(client, "think", thinking={"type": "adaptive", "display": "omitted"})
    assert [getattr(block, "thinking", block.type) for block in hidden.content] == ["", "text"]
    none = ask(client, "think", thinking={"type": "disabled"})
    assert [block.type for block in none.content] == ["text"]


def test_parse(client: Any) -> None:
    person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    made = client.messages.parse(model="chat", max_tokens=100, messages=say("json please"), output_format=person)
    assert made.parsed_output == person(name="Ada", age=36)
    form = {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"}
    assert described(client, output_config=form)["sampling"]["structured_outputs"] == {"json": SCHEMA}


def test_a_begun_answer_is_continued(client: Any) -> None:
    messages = [*say("tell me"), {"role": "assistant", "content": "Well,"}]
    asked = json.loads(client.messages.create(model="chat", max_tokens=9, messages=messages).content[0].text)
    assert asked["prompt"] == "<user>tell me</end><assistant>Well,"


def test_counted_tokens(client: Any, base_url: str) -> None:
    made = client.messages.count_tokens(model="chat", messages=say("say hello"), system="Be brief.", tools=[TOOL])
    prompt = f"<tools>{json.dumps([_function()])}</tools><system>Be brief.</end><user>say hello</end><assistant>"
    body = {"model": "chat", "prompt": prompt, "add_special_tokens": False}
    assert made.input_tokens == httpx.post(f"{base_url}/tokenize", json=body).json()["count"]


def _function() -> Any:
    members = {"name": TOOL["name"], "description": TOOL["description"], "parameters": SCHEMA}
    return {"type": "function", "function": members}


@pytest.mark.parametrize(
    ("members", "error", "text"),
    [
        ({"model": "nope"}, anthropic.NotFoundError, "Unknown model: nope"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "'max_tokens'"),
        ({"messages": say("x")[:0]}, anthropic.BadRequestError, "'messages'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
            anthropic.BadRequestError,
            r"'messages\[0\].content\[0\].source.url': expected a data URL .* got 'x'",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, anthropic.BadRequestError, "web_search"),
        ({"container": "c"}, anthropic.BadRequestError, "'container' cannot be honoured"),
        ({"model": "plain", "tool_choice": {"type": "any"}, "tools": [TOOL]}, anthropic.BadRequestError, "structured"),
    ],
)
def test_errors(client: Any, members: Any, error: type[anthropic.APIStatusError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        ask(client, "x", **members)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["request_id"] == caught.value.request_id
    assert caught.value.type in ("not_found_error", "invalid_request_error")


def test_a_model_that_fails(client: Any) -> None:
    with pytest.raises(anthropic.InternalServerError, match="the engine has failed") as caught:
        ask(client, "fail now")
    assert caught.value.type == "api_error"
    texts: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError, match="the engine has failed"),
        client.messages.stream(model="chat", max_tokens=9, messages=say("fail late")) as stream,
    ):
        texts.extend(stream.text_stream)
    assert texts == ["A", "B"]


def test_without_a_tokenizer(client: Any) -> None:
    made = ask(client, "abc STOP def", model="plain", stop_sequences=["STOP"])
    assert (made.content[0].text, made.stop_reason, made.stop_sequence) == ("ABC ", "stop_sequence", "STOP")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (0, 0)
    with pytest.raises(anthropic.BadRequestError, match="has no tokenizer"):
        client.messages.count_tokens(model="plain", messages=say("x"))


def test_many_at_once_without_a_thread(base_url: str) -> None:
    async def one(client: Any, number: int) -> str:
        messages = say(f"say hello {number}")
        async with client.messages.stream(model="chat", max_tokens=100, messages=messages) as stream:
            return "".join([text async for text in stream.text_stream])

    async def run() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(16)))

    assert asyncio.run(run()) == [HELLO] * 16


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_model(text_server: ServerProcess, text_repository: Path, stream: bool) -> None:
    begun, cancelled = (text_repository / "chat" / "1" / name for name in ("begun", "cancelled"))
    for mark in (begun, cancelled):
        mark.unlink(missing_ok=True)
    host, port = text_server.addresses["http"].rsplit(":", 1)
    body = json.dumps({"model": "chat", "max_tokens": 9, "messages": say("forever"), "stream": stream}).encode()
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        assert eventually(begun.exists)
    assert eventually(cancelled.exists)


def test_keys(text_repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.one]\nkey = "a-secret-of-thirty-two-characters"\nallow = ["inference"]\n')
    explicit = ("--model-control-mode=explicit", "--load-model=plain")
    with ServerProcess(f"--auth-keys-file={keys}", *explicit, repository=text_repository) as server:
        url = f"http://{server.addresses['http']}"
        for secret in (
            {"api_key": "a-secret-of-thirty-two-characters"},
            {"auth_token": "a-secret-of-thirty-two-characters"},
        ):
            with anthropic.Anthropic(base_url=url, max_retries=0, **secret) as client:  # type: ignore[arg-type]
                assert ask(client, "hi", model="plain").content[0].text == "HI. "
        with anthropic.Anthropic(base_url=url, max_retries=0, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                ask(client, "hi", model="plain")
            assert caught.value.type == "authentication_error"
        wrong = {"x-api-key": "a-secret-of-thirty-two-characters"}
        assert httpx.post(f"{url}/v1/chat/completions", json={}, headers=wrong).status_code == 401
