"""Whole answers: what one choice says, gathered from its deltas, and the JSON objects of chat and completions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from protocol.http.openai.codec.chunks import Usage
from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart


class Message:
    """The assistant's message of one choice."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    self._content.append(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ToolCallStart(index, call_id, name):
                    self._calls[index] = {"id": call_id, "type": "function", "function": {"name": name}}
                    self._arguments[index] = []
                case ToolCallArguments(index, text):
                    self._arguments[index].append(text)

    def members(self) -> dict[str, Any]:
        content = "".join(self._content)
        made: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
            "refusal": None,
        }
        if self._reasoning:
            made["reasoning_content"] = made["reasoning"] = "".join(self._reasoning)
        if self._calls:
            made["tool_calls"] = [self._call(index) for index in sorted(self._calls)]
        return made

    def _call(self, index: int) -> dict[str, Any]:
        call = self._calls[index]
        return {**call, "function": {**call["function"], "arguments": "".join(self._arguments[index])}}


def answer(
    response_id: str, kind: str, created: int, model: str, choices: Sequence[dict[str, Any]], usage: Usage | None
) -> dict[str, Any]:
    """The whole answer; `usage` is None where neither the model nor a tokenizer says how much it was."""
    return {
        "id": response_id,
        "object": kind,
        "created": created,
        "model": model,
        "system_fingerprint": None,
        "choices": choices,
        "usage": None if usage is None else usage.members(),
    }
