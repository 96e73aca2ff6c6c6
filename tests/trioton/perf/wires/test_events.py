"""Events: how they are cut out of a body, and which are responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trioton.perf.wires.events import DONE, EventReader, generate_event, openai_event


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_events_are_read_in_whatever_pieces_they_come(size: int, end: bytes) -> None:
    body = end.join([b"data: one", b": a comment", b"event: x\ndata: two\ndata: three", b"data:four", b""])
    reader = EventReader()
    found = [event for start in range(0, len(body), size) for event in reader.feed(body[start : start + size])]
    assert found == [b"one", b"two\nthree", b"four"]


def test_an_event_that_never_ends() -> None:
    reader = EventReader()
    assert list(reader.feed(bytes(10 << 20))) == []
    with pytest.raises(ValueError, match="never ends"):
        list(reader.feed(bytes(10 << 20)))


def chunk(**members: Any) -> bytes:
    return json.dumps({"id": "1", "object": "chat.completion.chunk", **members}).encode()


@pytest.mark.parametrize(
    ("data", "has_content", "tokens"),
    [
        (chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]), False, None),
        (chunk(choices=[{"index": 0, "delta": {"content": "word"}}]), True, None),
        (chunk(choices=[{"index": 0, "delta": {"reasoning_content": "hm"}}]), True, None),
        (chunk(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]), True, None),
        (chunk(choices=[{"index": 0, "text": "word"}]), True, None),
        (chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]), False, None),
        (chunk(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 17}), False, 17),
        (chunk(choices=[{"message": {"content": "all"}}], usage={"completion_tokens": 5}), True, 5),
        (DONE, False, None),
    ],
)
def test_chunks_with_text_are_responses(data: bytes, has_content: bool, tokens: int | None) -> None:
    found = openai_event(data)
    assert (found.has_content, found.tokens, found.error) == (has_content, tokens, "")


@pytest.mark.parametrize("data", [b'{"error": {"message": "too long", "type": "x"}}', b'{"error": "too long"}'])
def test_errors_within_a_stream(data: bytes) -> None:
    assert openai_event(data).error == "too long"


def test_what_is_no_json_is_an_error() -> None:
    assert "no JSON" in openai_event(b"<html>").error


def test_events_of_the_generate_extension() -> None:
    assert generate_event(b'{"model_name": "m", "text_output": "word"}').has_content
    assert generate_event(b'{"error": "no slot"}').error == "no slot"
    assert generate_event(b'{"text_output": "an \\"error\\" of hers"}').error == ""
