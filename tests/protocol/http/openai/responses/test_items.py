"""From input items to the messages of a chat, and which items are refused, by their place."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.http.openai.codec.images import Picture
from protocol.http.openai.errors import FieldError
from protocol.http.openai.responses.items import chat_messages, items_of

CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'}
READ_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_a_text_is_what_the_user_says() -> None:
    assert chat_messages("be brief", items_of("hi")) == [
        {"role": "system", "content": [text("be brief")]},
        {"role": "user", "content": [text("hi")]},
    ]


@pytest.mark.parametrize("given", [None, "", []])
def test_an_input_has_to_be_there(given: Any) -> None:
    if given == "":
        assert items_of(given) == [{"type": "message", "role": "user", "content": ""}]
        return
    with pytest.raises(FieldError, match="'input'"):
        items_of(given)


def test_what_the_assistant_does_is_one_message() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I ask."}]},
        CALL,
        {**CALL, "call_id": "b", "arguments": ""},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
        {"type": None, "role": "user", "content": "thanks"},
    ]
    empty = {**READ_CALL, "id": "b", "function": {"name": "f", "arguments": {}}}
    assert chat_messages(None, items) == [
        {"role": "user", "content": [text("go")]},
        {
            "role": "assistant",
            "content": [text("I ask.")],
            "reasoning_content": "hm",
            "tool_calls": [READ_CALL, empty],
        },
        {"role": "tool", "tool_call_id": "a", "content": [text("1")]},
        {"role": "tool", "tool_call_id": "b", "content": [text("2")]},
        {"role": "user", "content": [text("thanks")]},
    ]


def test_instructions_and_what_the_developer_says_are_one_message() -> None:
    items = [
        {"role": "developer", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert chat_messages("a", items)[0] == {"role": "system", "content": [text("a"), text("b"), text("c")]}
    assert chat_messages(None, items[:1]) == [{"role": "developer", "content": [text("b")]}]


def test_a_summary_stands_for_what_was_thought() -> None:
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "x"}]
    assert chat_messages(None, items) == [{"role": "assistant", "content": [], "reasoning_content": "s"}]


def image(data: str) -> dict[str, str]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "low"}


def result(call: str, *parts: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": list(parts)}


def test_pictures_stand_where_they_were_given() -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "a"}, image("YQ=="), image("Yg==")]}]
    first, second = (
        Picture(f"input[0].content[{place}].image_url", data) for place, data in ((1, "YQ=="), (2, "Yg=="))
    )
    assert chat_messages(None, items) == [{"role": "user", "content": [text("a"), first, second]}]


def test_pictures_of_tools_are_shown_after_their_results() -> None:
    """Not between two results, and together with what the user says next, since templates want turns."""
    said = {"type": "input_text", "text": "b"}
    results = [result("a", image("YQ=="), said), result("b", image("Yg=="))]
    first, second = (Picture(f"input[{place}].output[0].image_url", data) for place, data in ((0, "YQ=="), (1, "Yg==")))
    tools = [
        {"role": "tool", "tool_call_id": "a", "content": [text("b")]},
        {"role": "tool", "tool_call_id": "b", "content": []},
    ]
    shown = {"role": "user", "content": [first, second]}
    assert chat_messages(None, results) == [*tools, shown]
    assert chat_messages(None, [*results, CALL]) == [
        *tools,
        shown,
        {"role": "assistant", "content": [], "tool_calls": [READ_CALL]},
    ]
    assert chat_messages(None, [*results, {"role": "user", "content": "c"}]) == [
        *tools,
        {"role": "user", "content": [first, second, text("c")]},
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "input[0].type"),
        ({"type": "item_reference", "id": "x"}, "input[0].type"),
        ({"type": ["message"]}, "input[0].type"),
        ({"type": "message"}, "input[0].role"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input[0].content[0].file_id"),
        (result("a", {"type": "input_image", "image_url": "file:///etc/passwd"}), "input[0].output[0].image_url"),
        ({**CALL, "arguments": "{"}, "input[0].arguments"),
        ({**CALL, "arguments": {}}, "input[0].arguments"),
        ({**CALL, "arguments": '{"a": "\\ud800"}'}, "input[0].arguments"),
        ({**CALL, "arguments": "[" * 100_000}, "input[0].arguments"),
        ({**CALL, "name": None}, "input[0].name"),
        ({**CALL, "call_id": 1}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "a"}, "input[0].output"),
        ({"type": "function_call_output", "output": "a"}, "input[0].call_id"),
        ({"type": "reasoning", "content": "x"}, "input[0].content"),
        ({"type": "reasoning", "content": ["x"]}, "input[0].content[0]"),
        ({"type": "reasoning", "content": [{}]}, "input[0].content[0].text"),
    ],
)
def test_what_is_refused(item: Any, param: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat_messages(None, [{"role": "user", "content": "known"}, item], known=1)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
