"""The Responses API by the official client, unchanged: whole answers, streams, tools, parsing, reasoning, errors."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from tests.e2e.openai.test_client import HELLO
from tests.e2e.server_process import ServerProcess, eventually

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city",
    "parameters": SCHEMA,
    "strict": True,
}


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def described(client: Any, **more: Any) -> Any:
    """What the model was asked."""
    return json.loads(client.responses.create(**{"model": "chat", "input": "tell me", **more}).output_text)


def test_a_whole_answer(client: Any) -> None:
    made = client.responses.create(model="chat", input="say hello", metadata={"a": "b"}, max_output_tokens=64)
    assert (made.output_text, made.status, made.error, made.metadata) == (HELLO, "completed", None, {"a": "b"})
    (item,) = made.output
    assert (item.type, item.role, item.status, item.content[0].annotations) == ("message", "assistant", "completed", [])
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (2, 5, 7)
    assert made.id.startswith("resp_")


def test_the_model_gets_its_template_and_its_parameters(client: Any) -> None:
    asked = described(
        client,
        instructions="Be brief.",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=200,
        user="me",
        include=["reasoning.encrypted_content"],
        extra_body={"seed": 4, "top_k": 3},
    )
    assert asked["prompt"] == "<system>Be brief.</end><user>tell me</end><assistant>"
    length = asked["sampling"].pop("max_tokens")
    assert 190 <= length <= 200
    assert asked["sampling"] == {"temperature": 0.5, "top_p": 0.9, "seed": 4, "top_k": 3}


def test_a_stream(client: Any) -> None:
    events = list(client.responses.create(model="chat", input="say hello", stream=True))
    assert [each.type for each in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [each.sequence_number for each in events] == list(range(13))
    assert events[-1].response.output_text == HELLO


def test_the_clients_own_accumulator(client: Any) -> None:
    with client.responses.stream(model="chat", input="the weather", tools=[TOOL]) as stream:
        kinds = [each.type for each in stream]
        made = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    text, call = made.output
    assert (text.content[0].text, call.name, json.loads(call.arguments)) == (
        "Let me see.",
        "get_weather",
        {"city": "Berlin"},
    )


def test_an_answer_that_is_cut_by_its_length(client: Any) -> None:
    made = client.responses.create(model="chat", input="say hello", max_output_tokens=2)
    assert (made.output_text, made.status, made.incomplete_details.reason) == (
        "Hello,",
        "incomplete",
        "max_output_tokens",
    )
    assert made.output[0].status == "incomplete"
    *_, last = client.responses.create(model="chat", input="say hello", max_output_tokens=2, stream=True)
    assert last.type == "response.incomplete"
    assert client.responses.create(model="chat", input="say hello", max_output_tokens=32_000).status == "completed"


def test_tools(client: Any) -> None:
    made = client.responses.create(model="chat", input="the weather", tools=[TOOL])
    call = made.output[1]
    assert (call.type, call.status) == ("function_call", "completed")
    told = [
        {"role": "user", "content": "go"},
        *made.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        {"role": "user", "content": [{"type": "input_text", "text": "tell me"}]},
    ]
    assert described(client, input=told)["prompt"] == (
        "<user>go</end><assistant>Let me see.<call>Berlin</call></end><tool>sunny</end><user>tell me</end><assistant>"
    )


@pytest.mark.parametrize(
    ("text", "choice", "city"),
    [
        ("call any", "required", "Rome"),
        ("call that", {"type": "function", "name": "get_weather"}, "Oslo"),
        (
            "call any",
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
            "Rome",
        ),
    ],
)
def test_tools_that_have_to_be_called(client: Any, text: str, choice: Any, city: str) -> None:
    made = client.responses.create(model="chat", input=text, tools=[TOOL], tool_choice=choice)
    (call,) = made.output
    assert json.loads(call.arguments) == {"city": city}


def test_parse(client: Any) -> None:
    person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    made = client.responses.parse(model="chat", input="json please", text_format=person)
    assert made.output_parsed == person(name="Ada", age=36)
    with client.responses.stream(model="chat", input="json please", text_format=person) as stream:
        assert stream.get_final_response().output_parsed == person(name="Ada", age=36)
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    assert described(client, text={"format": form})["sampling"]["structured_outputs"] == {"json": SCHEMA}


def test_reasoning(client: Any) -> None:
    made = client.responses.create(model="chat", input="think", reasoning={"effort": "low", "summary": "auto"})
    thought, answer = made.output
    assert (thought.type, thought.content[0].text, answer.content[0].text) == (
        "reasoning",
        "Let me think.",
        "It is 42.",
    )
    assert made.usage.output_tokens_details.reasoning_tokens > 0
    events = list(client.responses.create(model="chat", input="think", stream=True))
    thoughts = [each.delta for each in events if each.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "Let me think."
    again = described(client, input=[*made.output, {"role": "user", "content": "tell me"}])
    assert again["prompt"] == "<assistant>It is 42.</end><user>tell me</end><assistant>"


def test_logprobs(client: Any) -> None:
    made = client.responses.create(
        model="chat", input="say hello", include=["message.output_text.logprobs"], top_logprobs=1
    )
    tokens = made.output[0].content[0].logprobs
    assert "".join(token.token for token in tokens) == HELLO
    assert [(token.logprob, token.top_logprobs[0].token) for token in tokens] == [(-1.5, "other")] * 5
    events = client.responses.create(model="chat", input="say hello", top_logprobs=1, stream=True)
    deltas = [each.logprobs for each in events if each.type == "response.output_text.delta"]
    assert [len(logprobs) for logprobs in deltas] == [1] * 5


def test_counted_tokens(client: Any, base_url: str) -> None:
    made = client.responses.input_tokens.count(model="chat", input="say hello", instructions="Be brief.")
    prompt = "<system>Be brief.</end><user>say hello</end><assistant>"
    body = {"model": "chat", "prompt": prompt, "add_special_tokens": False}
    assert made.input_tokens == httpx.post(f"{base_url}/tokenize", json=body).json()["count"]


def test_the_oldest_turns_are_left_out_of_what_is_too_long(client: Any) -> None:
    turns = [{"role": "user", "content": f"go {number}"} for number in range(20)]
    made = described(client, model="other", input=turns, instructions="Be", truncation="auto", max_output_tokens=4)
    assert made["prompt"].startswith("<s>[SYSTEM] Be [USER] go 1")
    assert made["prompt"].endswith("[USER] go 19 ")


@pytest.mark.parametrize(
    ("members", "error", "param"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"input": [{"type": "computer_call_output"}]}, openai.BadRequestError, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            openai.BadRequestError,
            "input[0].content[0].image_url",
        ),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools[0].type"),
        ({"conversation": "c"}, openai.BadRequestError, "conversation"),
        ({"truncation": "some"}, openai.BadRequestError, "truncation"),
        ({"model": "other", "input": "word " * 50}, openai.BadRequestError, "input"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"include": ["what"]}, openai.BadRequestError, "include[0]"),
    ],
)
def test_errors(client: Any, members: Any, error: type[openai.APIStatusError], param: str) -> None:
    with pytest.raises(error) as caught:
        client.responses.create(**{"model": "chat", "input": "x", **members})
    assert caught.value.param == param


def test_a_model_that_fails(client: Any) -> None:
    with pytest.raises(openai.InternalServerError, match="the engine has failed"):
        client.responses.create(model="chat", input="fail now", stream=True)
    events = list(client.responses.create(model="chat", input="fail late", stream=True))
    *_, error, failed = events
    assert (error.type, error.message) == ("error", "the engine has failed")
    assert (failed.type, failed.response.status, failed.response.error.code) == (
        "response.failed",
        "failed",
        "server_error",
    )
    assert failed.response.output[0].content[0].text == "AB"
    assert [each.sequence_number for each in events] == list(range(len(events)))


def test_many_at_once_without_a_thread(base_url: str) -> None:
    async def one(client: Any, number: int) -> str:
        async with client.responses.stream(model="chat", input=f"say hello {number}") as stream:
            return str((await stream.get_final_response()).output_text)

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(16)))

    assert asyncio.run(run()) == [HELLO] * 16


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_model(text_server: ServerProcess, text_repository: Path, stream: bool) -> None:
    begun, cancelled = (text_repository / "chat" / "1" / name for name in ("begun", "cancelled"))
    for mark in (begun, cancelled):
        mark.unlink(missing_ok=True)
    host, port = text_server.addresses["http"].rsplit(":", 1)
    body = json.dumps({"model": "chat", "input": "forever", "stream": stream}).encode()
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        assert eventually(begun.exists)
    assert eventually(cancelled.exists)


def test_what_is_kept(client: Any) -> None:
    first = client.responses.create(model="chat", input="say hello")
    assert client.responses.retrieve(first.id).output_text == HELLO
    second = client.responses.create(model="chat", input="quote", previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.content[0].text for item in items] == ["say hello", HELLO, "quote"]
    assert second.usage.input_tokens > first.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        described(client, previous_response_id=first.id)


def test_in_the_background(client: Any) -> None:
    made = client.responses.create(model="chat", input="say hello", background=True)
    assert made.status in ("queued", "in_progress")
    assert eventually(lambda: client.responses.retrieve(made.id).status == "completed")
    assert client.responses.retrieve(made.id).output_text == HELLO


def test_one_in_the_background_is_cancelled(client: Any, text_repository: Path) -> None:
    begun, cancelled = (text_repository / "chat" / "1" / name for name in ("begun", "cancelled"))
    for mark in (begun, cancelled):
        mark.unlink(missing_ok=True)
    made = client.responses.create(model="chat", input="forever", background=True)
    assert eventually(begun.exists)
    assert client.responses.cancel(made.id).status == "cancelled"
    assert eventually(cancelled.exists)


def test_a_stream_is_taken_up_again(client: Any, text_repository: Path) -> None:
    cancelled = text_repository / "chat" / "1" / "cancelled"
    cancelled.unlink(missing_ok=True)
    stream = client.responses.create(model="chat", input="forever", background=True, stream=True)
    seen = [event for _, event in zip(range(8), stream, strict=False)]
    stream.close()
    response_id = seen[0].response.id
    rest = client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
    following = [event for _, event in zip(range(4), rest, strict=False)]
    rest.close()
    assert [event.sequence_number for event in following] == [8, 9, 10, 11]
    assert not cancelled.exists()
    with client.responses.stream(response_id=response_id) as again:
        first = next(iter(again))
    assert first.type == "response.created"
    client.responses.delete(response_id)
    assert eventually(cancelled.exists)


def test_over_every_version_of_http(base_url: str, client: Any) -> None:
    made = client.responses.create(model="chat", input="say hello", background=True, stream=True)
    first, *_ = made
    response_id = first.response.id
    url = f"{base_url}/v1/responses/{response_id}?stream=true&starting_after=2"
    for is_http2 in (False, True):
        with httpx.Client(http1=not is_http2, http2=is_http2) as plain:
            reply = plain.get(url)
        assert reply.text.startswith("event: response.output_item.added")


def test_flags(text_repository: Path) -> None:
    flags = ("--openai-store-bytes=0", "--model-control-mode=explicit", "--load-model=chat")
    with (
        ServerProcess(*flags, repository=text_repository) as server,
        openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none", max_retries=0) as client,
    ):
        made = client.responses.create(model="chat", input="say hello")
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)


def test_one_in_the_background_does_not_hold_up_the_servers_end(text_repository: Path) -> None:
    begun = text_repository / "chat" / "1" / "begun"
    begun.unlink(missing_ok=True)
    flags = ("--exit-timeout-secs=600", "--model-control-mode=explicit", "--load-model=chat")
    with (
        ServerProcess(*flags, repository=text_repository) as server,
        openai.OpenAI(base_url=f"http://{server.addresses['http']}/v1", api_key="none", max_retries=0) as client,
    ):
        client.responses.create(model="chat", input="forever", background=True)
        assert eventually(begun.exists)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_response_is_its_keys_alone(text_repository: Path, tmp_path: Path) -> None:
    secrets = {name: f"a-secret-of-{name}-{'0' * 16}" for name in ("alice", "bob")}
    keys = tmp_path / "keys.toml"
    keys.write_text("".join(f'[keys.{name}]\nkey = "{key}"\nallow = ["inference"]\n' for name, key in secrets.items()))
    flags = (f"--auth-keys-file={keys}", "--model-control-mode=explicit", "--load-model=chat")
    with ServerProcess(*flags, repository=text_repository) as server:
        url = f"http://{server.addresses['http']}/v1"
        alice, bob = (openai.OpenAI(base_url=url, api_key=key, max_retries=0) for key in secrets.values())
        with alice, bob:
            made = alice.responses.create(model="chat", input="say hello")
            assert alice.responses.retrieve(made.id).output_text == HELLO
            with pytest.raises(openai.NotFoundError):
                bob.responses.retrieve(made.id)
            with pytest.raises(openai.NotFoundError):
                bob.responses.delete(made.id)
            with pytest.raises(openai.BadRequestError, match="not found"):
                bob.responses.create(model="chat", input="x", previous_response_id=made.id)
