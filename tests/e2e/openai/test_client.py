"""The official client, unchanged: whole answers, streams, tools, parsing, raw responses, errors; with and without a
loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
HELLO = "Hello, world! \N{SMILING FACE WITH SMILING EYES}"


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def described(client: Any, text: str = "tell me", model: str = "chat", **more: Any) -> Any:
    """What the model was asked."""
    made = client.chat.completions.create(model=model, messages=say(text), **more)
    return json.loads(made.choices[0].message.content)


def test_a_whole_answer(client: Any) -> None:
    made = client.chat.completions.create(model="chat", messages=say("say hello"), max_tokens=64)
    (choice,) = made.choices
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (HELLO, "assistant", "stop")
    assert (made.usage.completion_tokens, made.usage.total_tokens) == (5, made.usage.prompt_tokens + 5)
    assert made._request_id


def test_a_stream(client: Any) -> None:
    chunks = list(
        client.chat.completions.create(
            model="chat", messages=say("say hello"), stream=True, stream_options={"include_usage": True}
        )
    )
    *deltas, usage = chunks
    assert deltas[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in deltas] == [
        "",
        "Hello",
        ",",
        " wor",
        "ld",
        "! \N{SMILING FACE WITH SMILING EYES}",
    ]
    assert [chunk.choices[0].finish_reason for chunk in deltas] == [None] * 5 + ["stop"]
    assert usage.usage.completion_tokens == 5
    assert len({chunk.id for chunk in chunks}) == 1


def test_an_answer_that_is_cut_by_its_length(client: Any) -> None:
    made = client.chat.completions.create(model="chat", messages=say("say hello"), max_completion_tokens=2)
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("Hello,", "length")


def test_the_model_gets_its_template_and_its_parameters(client: Any) -> None:
    asked = described(
        client,
        temperature=0.5,
        seed=4,
        stop=["x"],
        frequency_penalty=1,
        logit_bias={"5": 2},
        user="me",
        extra_body={"top_k": 3},
    )
    assert asked["prompt"] == "<user>tell me</end><assistant>"
    length = asked["sampling"].pop("max_tokens")
    assert 200 < length < 256
    assert asked["sampling"] == {
        "temperature": 0.5,
        "seed": 4,
        "stop": ["x"],
        "frequency_penalty": 1,
        "logit_bias": {"5": 2},
        "top_k": 3,
    }
    assert asked["parameters"] == {"add_special_tokens": False}


def test_each_model_has_a_template_of_its_own(client: Any) -> None:
    style = {"chat_template_kwargs": {"style": "(briefly)"}}
    assert described(client, "hi", "other", extra_body=style)["prompt"] == "<s>[USER] hi (briefly)"
    assert described(client, "hi")["prompt"] == "<user>hi</end><assistant>"
    with pytest.raises(openai.BadRequestError, match="no tools here"):
        client.chat.completions.create(model="other", messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}])


def test_a_prompt_that_the_context_does_not_hold(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 40 tokens") as caught:
        client.chat.completions.create(model="other", messages=say("word " * 50))
    assert caught.value.code == "context_length_exceeded"


def test_tools(client: Any) -> None:
    made = client.chat.completions.create(model="chat", messages=say("the weather"), tools=[TOOL])
    (choice,) = made.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Berlin"})
    answered = [
        *say("the weather"),
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, tell me more"},
    ]
    made = client.chat.completions.create(model="chat", messages=answered, tools=[TOOL], tool_choice="none")
    asked = json.loads(made.choices[0].message.content) if made.choices[0].message.content.startswith("{") else {}
    assert not asked or "<call>Berlin</call>" in asked["prompt"]


def test_tools_of_a_stream(client: Any) -> None:
    """By the client's own accumulator, which is strict about the order of what comes."""
    with client.chat.completions.stream(model="chat", messages=say("the weather"), tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        made = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = made.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Berlin"}
    assert made.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("text", "choice", "city", "reason"),
    [
        ("call any", "required", "Rome", "tool_calls"),
        ("call that", {"type": "function", "function": {"name": "get_weather"}}, "Oslo", "stop"),
    ],
)
def test_tools_that_have_to_be_called(client: Any, text: str, choice: Any, city: str, reason: str) -> None:
    arguments = {"model": "chat", "messages": say(text), "tools": [TOOL], "tool_choice": choice}
    made = client.chat.completions.create(**arguments)
    (call,) = made.choices[0].message.tool_calls
    assert (json.loads(call.function.arguments), made.choices[0].finish_reason) == ({"city": city}, reason)
    with client.chat.completions.stream(**arguments) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": city})


def test_structure_is_asked_of_the_model(client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert described(client, response_format=form)["sampling"]["structured_outputs"] == {"json": schema}
    with pytest.raises(openai.BadRequestError, match="takes no 'sampling_parameters'"):
        client.chat.completions.create(model="plain", messages=say("x"), response_format={"type": "json_object"})


def test_parse(client: Any) -> None:
    person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    made = client.chat.completions.parse(model="chat", messages=say("json please"), response_format=person)
    assert made.choices[0].message.parsed == person(name="Ada", age=36)


def test_reasoning(client: Any) -> None:
    made = client.chat.completions.create(model="chat", messages=say("think"))
    message = made.choices[0].message
    assert (message.content, message.reasoning_content, message.reasoning) == ("It is 42.", *["Let me think."] * 2)
    chunks = client.chat.completions.create(model="chat", messages=say("think"), stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas) == "Let me think."
    assert "".join(delta.content or "" for delta in deltas) == "It is 42."


def test_logprobs(client: Any) -> None:
    made = client.chat.completions.create(model="chat", messages=say("say hello"), logprobs=True, top_logprobs=1)
    tokens = made.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == HELLO
    assert [(token.logprob, token.top_logprobs[0].token) for token in tokens] == [(-1.5, "other")] * 5


def test_completions(client: Any) -> None:
    made = client.completions.create(model="chat", prompt=["say hello", "quote"], n=2, echo=True)
    assert [choice.text for choice in made.choices] == [
        *[f"say hello{HELLO}"] * 2,
        *['quotea"b\\c\n\t\N{LATIN SMALL LETTER E WITH ACUTE}'] * 2,
    ]
    stream = client.completions.create(model="chat", prompt="say hello", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == HELLO


def test_a_model_that_is_not_decoupled(client: Any) -> None:
    made = client.chat.completions.create(model="plain", messages=say("abc STOP def"), stop=["STOP"])
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("ABC ", "stop")
    stream = client.chat.completions.create(model="plain", messages=say("abc"), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "ABC. "


def test_an_ensemble(client: Any) -> None:
    assert client.completions.create(model="joined", prompt="abc").choices[0].text == "ABC"
    with pytest.raises(openai.BadRequestError, match="model 'joined' has no chat template"):
        client.chat.completions.create(model="joined", messages=say("abc"))


def test_embeddings(client: Any) -> None:
    """The client asks for base64 by itself."""
    made = client.embeddings.create(model="vectors", input=["banana", "b"])
    assert [each.embedding for each in made.data] == [[6, 3, 0.5], [1, 0, 0.5]]
    made = client.embeddings.create(model="vectors", input="banana", encoding_format="float")
    assert made.data[0].embedding == [6, 3, 0.5]
    made = client.embeddings.create(model="embedder", input=[1, 2, 3], dimensions=4)
    assert (made.data[0].embedding, made.usage.prompt_tokens) == ([3, 0.25, 4], 3)


def test_models(client: Any) -> None:
    listed = {model.id: model for model in client.models.list()}
    encoders = {"vectors", "embedder", "cross_encoder", "encoder", "by_first_token"}
    assert set(listed) == {"chat", "poet", "law", "other", "plain", "joined", *encoders}
    assert (listed["poet"].parent, listed["chat"].max_model_len) == ("chat", 256)
    assert client.models.retrieve("poet").root == "/adapters/poet"
    assert described(client, model="poet")["sampling"]["lora_name"] == "poet"


def test_raw_responses(client: Any) -> None:
    made = client.chat.completions.with_raw_response.create(
        model="chat", messages=say("say hello"), extra_headers={"x-request-id": "my-own"}
    )
    assert made.headers["x-request-id"] == "my-own"
    assert made.parse().id == "chatcmpl-my-own"


@pytest.mark.parametrize(
    ("arguments", "error", "param"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, openai.BadRequestError, None),
        ({"modalities": ["audio"]}, openai.BadRequestError, "modalities"),
    ],
)
def test_errors(client: Any, arguments: Any, error: type[Exception], param: str | None) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "chat", "messages": say("x"), **arguments})
    assert param is None or caught.value.param == param  # type: ignore[attr-defined]


def test_a_model_that_fails(client: Any) -> None:
    with pytest.raises(openai.InternalServerError, match="the engine has failed"):
        client.chat.completions.create(model="chat", messages=say("fail now"), stream=True)
    stream = client.chat.completions.create(model="chat", messages=say("fail late"), stream=True)
    texts: list[str] = []
    with pytest.raises(openai.APIError, match="the engine has failed"):
        texts.extend(chunk.choices[0].delta.content for chunk in stream)
    assert texts == ["", "A", "B"]


def test_many_at_once_without_a_thread(base_url: str) -> None:
    async def ask(client: Any, number: int) -> str:
        stream = await client.chat.completions.create(
            model="chat", messages=say(f"say hello {number}"), stream=True, n=1 + number % 3
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if not chunk.choices[0].index])

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(24)))

    assert asyncio.run(run()) == [HELLO] * 24
