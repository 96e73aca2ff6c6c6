"""From the fields of a responses call to those of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.responses.chats import responses_chat
from protocol.http.openai.responses.items import items_of
from protocol.http.openai.responses.requests import (
    INPUT_TOKENS_REFUSED,
    RESPONSES_REFUSED,
    InputTokensRequest,
    ResponsesRequest,
)

READER = BodyReader(ResponsesRequest, RESPONSES_REFUSED)
SCHEMA = {"type": "object", "properties": {}}
TOOLS = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": None} for name in ("f", "g")]


def chat(**members: Any) -> ChatRequest:
    body = READER.read(json.dumps({"model": "m", "input": "hi", **members}).encode())
    return responses_chat(body, items_of(body.input))


def test_sampling() -> None:
    names = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
    given: dict[str, Any] = {**dict.fromkeys(names, 0.5), "seed": 1, "stop": ["x"], "top_k": 2, "stream": True}
    made = chat(**given, max_output_tokens=7)
    assert {name: getattr(made, name) for name in given} == given
    assert made.max_completion_tokens == 7


def test_tools() -> None:
    made = chat(tools=TOOLS, tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False)
    assert made.tools == [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in ("f", "g")]
    assert made.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert made.parallel_tool_calls is False
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    made = chat(tools=TOOLS, tool_choice=allowed)
    assert made.tools == [{"type": "function", "function": {"name": "g", "parameters": SCHEMA}}]
    assert made.tool_choice == "required"


def test_output() -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA}
    made = chat(text={"format": form, "verbosity": "low"}, reasoning={"effort": "high"})
    assert made.response_format == {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    assert made.reasoning_effort == "high"
    assert chat(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}


def test_logprobs() -> None:
    assert (chat().logprobs, chat().top_logprobs) == (None, None)
    made = chat(include=["message.output_text.logprobs"])
    assert (made.logprobs, made.top_logprobs) == (True, 0)
    assert chat(top_logprobs=3).top_logprobs == 3


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": [1]}]}, "tools[0].parameters"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"include": ["x"]}, "include[0]"),
        ({"truncation": "some"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        *[({name: {"x": 1}}, name) for name in RESPONSES_REFUSED],
    ],
)
def test_what_is_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat(**members)
    assert caught.value.param == param


def test_null_is_as_good_as_absent() -> None:
    names = [name for name in ResponsesRequest.__struct_fields__ if name not in ("model", "input")]
    assert chat(**dict.fromkeys(names)) == chat()


def test_fields_are_those_of_the_official_client() -> None:
    from openai.types.responses import input_token_count_params, response_create_params

    official = response_create_params.ResponseCreateParamsStreaming
    assert set(official.__annotations__) <= set(ResponsesRequest.__struct_fields__)
    assert set(input_token_count_params.InputTokenCountParams.__annotations__) <= set(
        InputTokensRequest.__struct_fields__
    )
    assert "personality" in INPUT_TOKENS_REFUSED
