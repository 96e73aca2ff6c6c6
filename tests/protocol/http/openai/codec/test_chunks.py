"""Events byte by byte: JSON that is right whatever the text is, and the members that clients look for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.http.openai.codec.chunks import ChatChunks, ChunkHead, CompletionChunks, Usage
from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart

TEXTS = ["a", "", 'quote " and \\', "line\nend\u2028", "\N{SMILING FACE WITH SMILING EYES}", "</script>", "\x00\x7f"]


def events(data: bytes) -> list[dict[str, Any]]:
    parts = data.split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data: ") and b"\n" not in part for part in parts)
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


def head(*, has_usage: bool = False) -> ChunkHead:
    return ChunkHead('id"1', "chat.completion.chunk", 5, "m\\", has_usage=has_usage)


def chunk(delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    return {
        "id": 'id"1',
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m\\",
        "choices": [{"index": 2, "delta": delta, "logprobs": logprobs, "finish_reason": reason}],
    }


@pytest.mark.parametrize("text", TEXTS)
def test_content_of_a_chat(text: str) -> None:
    chunks = ChatChunks(head(), 2)
    assert events(chunks.content(text)) == [chunk({"content": text})]
    assert chunks.content(text) == chunks.deltas([ContentDelta(text)])


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_a_completion(text: str) -> None:
    chunks = CompletionChunks(head(), 1)
    (event,) = events(chunks.content(text))
    assert event["choices"] == [{"index": 1, "text": text, "logprobs": None, "finish_reason": None}]
    assert chunks.content(text) == chunks.text(text)
    (event,) = events(chunks.text(text, finish_reason="length", usage=Usage(1, 2)))
    assert event["choices"][0]["finish_reason"] == "length"
    assert event["usage"] == {"prompt_tokens": 1, "total_tokens": 3, "completion_tokens": 2}


def test_the_role_comes_first() -> None:
    assert events(ChatChunks(head(), 2).role) == [chunk({"role": "assistant", "content": ""})]


def test_a_chunk_for_each_delta_and_the_end_in_the_last() -> None:
    deltas: list[Delta] = [
        ReasoningDelta("r"),
        ContentDelta("c"),
        ToolCallStart(0, "call_1", "f"),
        ToolCallArguments(0, '{"a"'),
    ]
    made = ChatChunks(head(), 2).deltas(deltas, finish_reason="tool_calls", logprobs={"content": []})
    begin = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert events(made) == [
        chunk({"reasoning_content": "r", "reasoning": "r"}),
        chunk({"content": "c"}),
        chunk({"tool_calls": [begin]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}, "tool_calls", {"content": []}),
    ]


def test_an_end_without_text() -> None:
    assert events(ChatChunks(head(), 2).deltas([], finish_reason="stop")) == [chunk({}, "stop")]


def test_usage_is_null_until_the_end() -> None:
    made = head(has_usage=True)
    chunks = ChatChunks(made, 2)
    data = (
        chunks.role + chunks.content("a") + chunks.deltas([ContentDelta("b")]) + chunks.deltas([], finish_reason="stop")
    )
    assert [event["usage"] for event in events(data)] == [None] * 4
    assert events(chunks.deltas([], usage=Usage(3, 4)))[0]["usage"]["total_tokens"] == 7
    (last,) = events(made.usage(Usage(3, 4)))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 4)
    assert events(made.usage(None))[0]["usage"] is None
