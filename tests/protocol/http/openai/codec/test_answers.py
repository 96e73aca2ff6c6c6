"""Whole messages, from deltas."""

from __future__ import annotations

from protocol.http.openai.codec.answers import Message, answer
from protocol.http.openai.codec.chunks import Usage
from protocol.text.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart


def test_a_message_of_text() -> None:
    message = Message()
    message.add([ContentDelta("a"), ContentDelta("b")])
    assert message.members() == {"role": "assistant", "content": "ab", "refusal": None}


def test_nothing_at_all_is_an_empty_text() -> None:
    assert Message().members()["content"] == ""


def test_calls_have_no_content_of_their_own() -> None:
    message = Message()
    message.add([ReasoningDelta("r"), ToolCallStart(0, "1", "f"), ToolCallStart(1, "2", "g")])
    message.add([ToolCallArguments(1, "{"), ToolCallArguments(0, "{}"), ToolCallArguments(1, "}"), ReasoningDelta("s")])
    assert message.members() == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "rs",
        "reasoning": "rs",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_usage_may_be_unknown() -> None:
    assert answer("i", "k", 1, "m", [], None)["usage"] is None
    assert answer("i", "k", 1, "m", [], Usage(1, 2))["usage"]["total_tokens"] == 3
