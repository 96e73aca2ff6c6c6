"""Content blocks: what an answer consists of, gathered whole or as the events of a stream. Pure.

Texts, thoughts and calls of tools follow each other, one block at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart

_encode = msgspec.json.encode
_NO_ARGUMENTS: dict[str, Any] = {}


def signature(thinking: str) -> str:
    """Of a block of thinking. Clients send it back with the block, as they must; it is not checked."""
    return hashlib.sha256(thinking.encode("utf-8", "replace")).hexdigest()


class ContentBlocks:
    """The blocks of a whole answer. Without `shows_thinking` those of thinking have no text, but are there."""

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self._shows_thinking = shows_thinking
        self._kind = ""
        self._texts: list[str] = []
        self._call = ToolCallStart(0, "", "")
        self._blocks: list[dict[str, Any]] = []

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    self._enter("text")
                    self._texts.append(text)
                case ReasoningDelta(text):
                    self._enter("thinking")
                    self._texts.append(text)
                case ToolCallStart():
                    self._close()
                    self._kind, self._call = "tool_use", delta
                case ToolCallArguments(text=text):
                    self._texts.append(text)

    def finish(self) -> list[dict[str, Any]]:
        self._close()
        return self._blocks

    def _enter(self, kind: str) -> None:
        if self._kind != kind:
            self._close()
            self._kind = kind

    def _close(self) -> None:
        text = "".join(self._texts)
        self._texts = []
        match self._kind:
            case "text":
                self._blocks.append({"type": "text", "text": text, "citations": None})
            case "thinking":
                shown = text if self._shows_thinking else ""
                self._blocks.append({"type": "thinking", "thinking": shown, "signature": signature(text)})
            case "tool_use":
                call = {"type": "tool_use", "id": self._call.id, "name": self._call.name, "input": arguments(text)}
                self._blocks.append(call)
        self._kind = ""


class BlockEvents:
    """The events of a streamed answer's blocks."""

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self._shows_thinking = shows_thinking
        self._kind = ""
        self._index = -1
        self._thoughts: list[str] = []
        self._head = b""

    def events(self, deltas: Iterable[Delta]) -> bytes:
        parts: list[bytes] = []
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    if self._kind != "text":
                        self._open(parts, "text", {"type": "text", "text": ""}, b'"text_delta","text":')
                    parts += (self._head, _encode(text), b"}}\n\n")
                case ReasoningDelta(text):
                    if self._kind != "thinking":
                        block = {"type": "thinking", "thinking": "", "signature": ""}
                        self._open(parts, "thinking", block, b'"thinking_delta","thinking":')
                    self._thoughts.append(text)
                    if self._shows_thinking:
                        parts += (self._head, _encode(text), b"}}\n\n")
                case ToolCallStart(_, call_id, name):
                    call = {"type": "tool_use", "id": call_id, "name": name, "input": _NO_ARGUMENTS}
                    self._open(parts, "tool_use", call, b'"input_json_delta","partial_json":')
                case ToolCallArguments(_, text):
                    parts += (self._head, _encode(text), b"}}\n\n")
        return b"".join(parts)

    def finish(self) -> bytes:
        """The end of the last block."""
        parts: list[bytes] = []
        self._close(parts)
        return b"".join(parts)

    def _open(self, parts: list[bytes], kind: str, block: dict[str, Any], delta: bytes) -> None:
        self._close(parts)
        self._kind = kind
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        parts.append(event("content_block_start", start))
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
            % (self._index, delta)
        )

    def _close(self, parts: list[bytes]) -> None:
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": signature("".join(self._thoughts))}
            self._thoughts = []
            members = {"type": "content_block_delta", "index": self._index, "delta": delta}
            parts.append(event("content_block_delta", members))
        if self._kind:
            parts.append(event("content_block_stop", {"type": "content_block_stop", "index": self._index}))
        self._kind = ""


def event(name: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(members))


def arguments(text: str) -> dict[str, Any]:
    """Of a call, as the model wrote them; none where the answer was cut in them, or they are no object."""
    try:
        found = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
