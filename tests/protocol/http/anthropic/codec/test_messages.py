"""From content blocks to the messages of a chat, and which blocks are refused, by their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.http.anthropic.codec.messages import chat_messages, picture_places
from protocol.http.anthropic.codec.requests import MESSAGES_REFUSED, MessagesRequest
from protocol.http.codec.long_texts import LONG_ABOVE
from protocol.http.openai.codec.images import Picture, pictures_of
from protocol.http.openai.codec.long_bodies import read_long_body
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.errors import FieldError
from tests.sliced import finished


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "done"}


def test_texts_are_parts() -> None:
    messages = [{"role": "user", "content": "hi"}, assistant(text("a"), text("b")), user(text("c"))]
    assert chat_messages("be brief", messages) == [
        {"role": "system", "content": [text("be brief")]},
        user(text("hi")),
        assistant(text("a"), text("b")),
        user(text("c")),
    ]


def test_neighbours_of_one_role_are_one_message() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    messages = [
        {"role": "system", "content": "b"},
        user(text("1")),
        {"role": "user", "content": "2"},
        assistant(thought, text("3")),
        assistant(thought, CALL),
        user(RESULT),
    ]
    assert chat_messages([text("a")], messages) == [
        {"role": "system", "content": [text("a"), text("b")]},
        user(text("1"), text("2")),
        {
            "role": "assistant",
            "content": [text("3")],
            "reasoning_content": "hmhm",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": [text("done")]},
    ]


def test_results_of_tools_are_messages_of_their_own() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("no")], "is_error": True},
        text("go on"),
    ]
    assert chat_messages(None, [user(*results)]) == [
        {"role": "tool", "tool_call_id": "a", "content": []},
        {"role": "tool", "tool_call_id": "b", "content": [text("no")], "is_error": True},
        user(text("go on")),
    ]


def image(data: Any = "YQ==", **members: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data, **members}}


def test_pictures_stand_where_they_were_given() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "data:image/png;base64,Yg=="}}
    assert chat_messages(None, [user(image(), text("a"), by_url)]) == [
        user(
            Picture("messages[0].content[0].source.data", "YQ=="),
            text("a"),
            Picture("messages[0].content[2].source.url", "Yg=="),
        )
    ]


def test_long_pictures_stay_in_the_body() -> None:
    data = "A" * LONG_ABOVE
    by_url = {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{data}"}}
    messages = [user(image(data), {**RESULT, "content": [image(data), text(data)]}, by_url, text(data))]
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": messages}).encode()
    reader = BodyReader(MessagesRequest, MESSAGES_REFUSED)
    found = finished(read_long_body(body, reader, lambda body: picture_places(body.messages), strict=False))
    assert found is not None
    pictures = [*pictures_of(chat_messages(None, found.messages))]
    views = [each.base64 for each in pictures if isinstance(each.base64, memoryview)]
    assert [bytes(each) for each in views] == [data.encode()] * 2
    assert all(each.obj is body for each in views)
    alone = [*pictures_of(chat_messages(None, messages))]
    shown = [each if isinstance(each, str) else str(each, "ascii") for each in (one.base64 for one in pictures)]
    assert shown == [each.base64 for each in alone]
    assert [each.path for each in pictures] == [each.path for each in alone]


def test_pictures_in_results_are_shown_after_all_of_them() -> None:
    results = [{**RESULT, "content": [text("b"), image()]}, {**RESULT, "tool_use_id": "b"}]
    made = [
        {"role": "tool", "tool_call_id": "a", "content": [text("b")]},
        {"role": "tool", "tool_call_id": "b", "content": [text("done")]},
    ]
    shown = Picture("messages[0].content[0].content[1].source.data", "YQ==")
    assert chat_messages(None, [user(*results)]) == [*made, user(shown)]
    assert chat_messages(None, [user(*results, text("c"))]) == [*made, user(shown, text("c"))]


def test_a_message_without_blocks() -> None:
    assert chat_messages("", [user()]) == [user()]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        (user("x"), "messages[0].content[0].type"),
        (user(text("a"), {"type": "image"}), "messages[0].content[1].source.type"),
        (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages[0].content[0].source.type"),
        (user(image(media_type="image/tiff")), "messages[0].content[0].source.media_type"),
        (user(image(media_type=None)), "messages[0].content[0].source.media_type"),
        (user(image(3)), "messages[0].content[0].source.data"),
        (user(image(type="url")), "messages[0].content[0].source.url"),
        (user(image(type="url", url="ftp://x/a.png")), "messages[0].content[0].source.url"),
        (assistant(image()), "messages[0].content[0].type"),
        (user({"type": ["text"]}), "messages[0].content[0].type"),
        (user({"type": "document"}), "messages[0].content[0].type"),
        (user(CALL), "messages[0].content[0].type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user({**RESULT, "tool_use_id": 3}), "messages[0].content[0].tool_use_id"),
        (user({**RESULT, "content": [{"type": "image"}]}), "messages[0].content[0].content[0].source.type"),
        (user({**RESULT, "content": [{"type": "document"}]}), "messages[0].content[0].content[0].type"),
        (user({**RESULT, "content": 3}), "messages[0].content[0].content"),
        (assistant({"type": "redacted_thinking", "data": "x"}), "messages[0].content[0].type"),
        (assistant({"type": "thinking"}), "messages[0].content[0].thinking"),
        (assistant({**CALL, "input": "{}"}), "messages[0].content[0].input"),
        (assistant({**CALL, "id": None}), "messages[0].content[0].id"),
        (assistant({**CALL, "name": None}), "messages[0].content[0].name"),
        (assistant(CALL), "messages[0].content"),
        (assistant(), "messages[0].content"),
        ({"role": "system", "content": [{"type": "image"}]}, "messages[0].content[0].type"),
    ],
)
def test_what_is_refused(message: Any, param: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat_messages(None, [message])
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


def test_blocks_of_the_system_are_texts() -> None:
    with pytest.raises(FieldError, match=r"'system\[0\].type'"):
        chat_messages([{"type": "image"}], [user(text("x"))])
