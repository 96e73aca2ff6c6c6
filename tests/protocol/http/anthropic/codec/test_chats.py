"""From the fields of a messages call to those of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.errors import InvalidArgument
from protocol.http.anthropic.codec.chats import messages_chat
from protocol.http.anthropic.codec.requests import MESSAGES_REFUSED, MessagesRequest
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.errors import FieldError

READER = BodyReader(MessagesRequest, MESSAGES_REFUSED)
MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"name": "f", "input_schema": SCHEMA}


def chat(**members: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 5, "messages": MESSAGES, **members}
    return messages_chat(READER.read(json.dumps(body).encode()))


def test_sampling() -> None:
    made = chat(temperature=0.5, top_p=0.5, top_k=2, stop_sequences=["x"], stream=True)
    assert (made.temperature, made.top_p, made.top_k, made.stop) == (0.5, 0.5, 2, ["x"])
    assert (made.model, made.max_completion_tokens, made.stream, made.continue_final_message) == ("m", 5, True, False)


def test_tools() -> None:
    more = {"description": "d", "strict": True, "input_examples": [{"a": 1}], "type": "custom"}
    made = chat(tools=[{**TOOL, **more, "cache_control": {"type": "ephemeral"}, "allowed_callers": ["direct"]}])
    function = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True, "input_examples": [{"a": 1}]}
    assert made.tools == [{"type": "function", "function": function}]
    assert (made.tool_choice, made.parallel_tool_calls) == (None, None)


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices_of_tools(choice: Any, asked: Any) -> None:
    made = chat(tools=[TOOL], tool_choice=choice)
    assert (made.tool_choice, made.parallel_tool_calls) == (asked, True)
    assert chat(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True}).parallel_tool_calls is False


def test_thinking() -> None:
    assert (chat().chat_template_kwargs, chat().include_reasoning) == (None, None)
    enabled = chat(thinking={"type": "enabled", "budget_tokens": 1024})
    assert enabled.chat_template_kwargs == {"enable_thinking": True, "thinking": True}
    assert enabled.include_reasoning is True
    disabled = chat(thinking={"type": "disabled"})
    assert disabled.chat_template_kwargs == {"enable_thinking": False, "thinking": False}
    assert disabled.include_reasoning is False


def test_output() -> None:
    made = chat(output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}})
    assert made.reasoning_effort == "low"
    assert made.response_format == {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL, {"name": "bash", "type": "bash_20250124"}]}, "tools[1].type"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        *[({name: {"x": 1}}, name) for name in MESSAGES_REFUSED],
    ],
)
def test_what_is_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat(**members)
    assert caught.value.param == param


def test_edits_that_keep_all_are_none() -> None:
    edit = {"type": "clear_thinking_20251015", "keep": "all"}
    assert chat(context_management={"edits": [edit]}) == chat()
    with pytest.raises(FieldError, match="messages are not edited"):
        chat(context_management={"edits": [{**edit, "keep": {"type": "thinking_turns", "value": 1}}]})


def test_null_is_as_good_as_absent() -> None:
    names = [name for name in MessagesRequest.__struct_fields__ if name not in ("messages", "max_tokens", "model")]
    assert chat(**dict.fromkeys(names)) == chat()


def test_bodies_that_are_no_objects() -> None:
    for body in (b"", b"[]", b"{", b"\xff", b"3", b"[" * 100_000):
        with pytest.raises(InvalidArgument):
            READER.read(body)
