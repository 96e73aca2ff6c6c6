"""Tools of a chat: what may be asked, what a model has to write for it, and how that is read."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.http.openai.chats.tools import answer_parser, plan_tools
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.errors import FieldError
from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from protocol.text.model import TextModel

HERMES = TextModel("m", 1, tool_parser="hermes")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "time"}}
NAMED = {"type": "function", "function": {"name": "time"}}


def chat(**members: Any) -> ChatRequest:
    return ChatRequest(messages=[{"role": "user"}], **members)


def read(request: ChatRequest, text: TextModel, answer: str, **more: Any) -> list[Delta]:
    """The deltas of an answer that comes character by character, joined."""
    parser = answer_parser(plan_tools(request, text), text, "", **more)()
    if parser is None:
        return [ContentDelta(answer)]
    found: list[Delta] = []
    for delta in [*(delta for character in answer for delta in parser.push(character)), *parser.finish()]:
        last = found[-1] if found else None
        if isinstance(delta, ToolCallStart):
            found.append(ToolCallStart(delta.index, "id", delta.name))
        elif isinstance(last, ToolCallArguments) and isinstance(delta, ToolCallArguments):
            found[-1] = ToolCallArguments(last.index, last.text + delta.text)
        elif isinstance(last, ContentDelta) and isinstance(delta, ContentDelta):
            found[-1] = ContentDelta(last.text + delta.text)
        elif isinstance(last, ReasoningDelta) and isinstance(delta, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + delta.text)
        else:
            found.append(delta)
    return found


@pytest.mark.parametrize(
    ("members", "choice", "shown"),
    [
        ({}, "none", 0),
        ({"tools": []}, "none", 0),
        ({"tool_choice": "auto"}, "none", 0),
        ({"tools": [WEATHER]}, "auto", 1),
        ({"tools": [WEATHER], "tool_choice": "none"}, "none", 0),
        ({"tools": [WEATHER, TIME], "tool_choice": "required"}, "required", 2),
        ({"tools": [WEATHER, TIME], "tool_choice": NAMED}, "named", 2),
    ],
)
def test_choices(members: dict[str, Any], choice: str, shown: int) -> None:
    plan = plan_tools(chat(**members), HERMES)
    assert (plan.choice, len(plan.shown)) == (choice, shown)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"tool_choice": "required"},
            '"required" tool choice requires CreateChatCompletionRequest.tools to be provided',
        ),
        ({"tool_choice": NAMED}, "Named tool choice requires CreateChatCompletionRequest.tools to be provided"),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "Tool 'time' has not been passed in `tools`."),
        ({"tools": [WEATHER], "tool_choice": "some"}, "'tool_choice': expected "),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "'tool_choice': expected "),
        ({"tools": [{"type": "custom"}]}, r"'tools\[0\]': expected one of type 'function'"),
        ({"tools": [{"type": "function", "function": {}}]}, r"'tools\[0\].function.name': expected a name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
            r"'tools\[0\].function.parameters'",
        ),
    ],
)
def test_what_cannot_be_asked(members: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        plan_tools(chat(**members), HERMES)


def test_a_model_without_a_parser_calls_no_tools_of_its_own_will() -> None:
    text = TextModel("m", 1)
    with pytest.raises(FieldError, match="\"auto\" tool choice requires the parameter 'tool_call_parser' of model 'm'"):
        plan_tools(chat(tools=[WEATHER]), text)
    assert plan_tools(chat(tools=[WEATHER], tool_choice="required"), text).structure is not None


def test_what_a_required_call_is_made_of() -> None:
    with_definitions = {**SCHEMA, "$defs": {"City": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": with_definitions}}
    plan = plan_tools(chat(tools=[tool, TIME], tool_choice="required"), HERMES)
    assert plan.structure is not None
    schema = plan.structure["json"]
    assert schema["$defs"] == {"City": {"type": "string"}}
    first, second = schema["items"]["anyOf"]
    assert first["properties"] == {"name": {"type": "string", "enum": ["weather"]}, "parameters": SCHEMA}
    assert second["properties"]["parameters"] == {"type": "object", "properties": {}}
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert with_definitions["$defs"], "the request's own schema is not changed"


def test_what_a_named_call_is_made_of() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    assert plan_tools(chat(tools=[TIME, WEATHER], tool_choice=named), HERMES).structure == {"json": SCHEMA}


CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
READ = [ToolCallStart(0, "id", "weather"), ToolCallArguments(0, '{"city": "Rome"}')]


def test_calls_by_the_models_own_parser() -> None:
    assert read(chat(tools=[WEATHER]), HERMES, "So: " + CALL) == [ContentDelta("So: "), *READ]


def test_required_calls() -> None:
    answer = '[{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "time", "parameters": {}}]'
    request = chat(tools=[WEATHER, TIME], tool_choice="required")
    assert read(request, TextModel("m", 1), answer) == [
        *READ,
        ToolCallStart(1, "id", "time"),
        ToolCallArguments(1, "{}"),
    ]


def test_a_list_of_required_calls_that_is_cut_off_has_no_content() -> None:
    request = chat(tools=[WEATHER], tool_choice="required")
    for rest in (",", "]", ', {"na', "  \n "):
        answer = '[{"name": "weather", "parameters": {"city": "Rome"}}' + rest
        assert read(request, TextModel("m", 1), answer) == READ
    assert read(request, TextModel("m", 1), "I cannot.") == [ContentDelta("I cannot.")], "an engine without structures"


def test_a_named_call() -> None:
    request = chat(tools=[WEATHER, TIME], tool_choice=NAMED)
    assert read(request, HERMES, '{"a": 1}') == [ToolCallStart(0, "id", "time"), ToolCallArguments(0, '{"a": 1}')]


def test_only_one_call_where_only_one_is_wanted() -> None:
    assert read(chat(tools=[WEATHER], parallel_tool_calls=False), HERMES, CALL + CALL) == READ
    assert len(read(chat(tools=[WEATHER]), HERMES, CALL + CALL)) == 4


def test_without_tools_text_is_text() -> None:
    assert read(chat(tools=[WEATHER], tool_choice="none"), HERMES, CALL) == [ContentDelta(CALL)]
    assert answer_parser(plan_tools(chat(), HERMES), HERMES, "")() is None


def test_reasoning_is_shown_or_left_out() -> None:
    text = TextModel("m", 1, tool_parser="hermes", reasoning_parser="think")
    answer = "<think>hm</think>yes"
    assert read(chat(), text, answer) == [ReasoningDelta("hm"), ContentDelta("yes")]
    assert read(chat(), text, answer, shows_reasoning=False) == [ContentDelta("yes")]
    assert read(chat(tools=[TIME], tool_choice=NAMED), text, "<think>hm</think>{}") == [
        ReasoningDelta("hm"),
        ToolCallStart(0, "id", "time"),
        ToolCallArguments(0, "{}"),
    ]
