"""Output items: what an answer consists of, and the events of a stream as they come. Pure.

Reasoning, messages and calls of functions follow each other, one item at a time. Most of an event is made once: a
token costs the JSON text of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from protocol.errors import Internal
from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart

_encode = msgspec.json.encode
# Of one response, which is in memory until it is complete: more than any context has room for.
MAX_CHARACTERS = 4 << 20
_DELTAS = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "function_call": "response.function_call_arguments.delta",
}


class OutputWriter:
    """The output of one response.

    Attributes:
        items: those that are complete.
        reasoning: the text of all that was thought.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.reasoning: list[str] = []
        self._sequence = 0
        self._size = 0
        self._item: dict[str, Any] = {}
        self._kind = ""
        self._texts: list[str] = []
        self._logprobs: list[Any] = []
        self._head = b""

    def write(self, deltas: Iterable[Delta], logprobs: Sequence[Any] = ()) -> bytes:
        """The events of these; the logprobs are told with the last text among them, or with the next one.

        Raises:
            Internal: the model does not come to an end.
        """
        self._logprobs += logprobs
        found = list(deltas)
        last = next((delta for delta in reversed(found) if isinstance(delta, ContentDelta)), None)
        parts: list[bytes] = []
        for delta in found:
            match delta:
                case ContentDelta(text):
                    if self._kind != "message":
                        self._open(parts, "message", {"role": "assistant", "content": []})
                    self._text(parts, text, has_logprobs=delta is last)
                case ReasoningDelta(text):
                    if self._kind != "reasoning":
                        self._open(parts, "reasoning", {"summary": [], "content": []})
                    self.reasoning.append(text)
                    self._delta(parts, text, b"")
                case ToolCallStart(_, call_id, name):
                    self._open(parts, "function_call", {"call_id": call_id, "name": name, "arguments": ""})
                case ToolCallArguments(_, text):
                    self._delta(parts, text, b"")
        return b"".join(parts)

    def finish(self, status: str = "completed") -> bytes:
        """The end of the last item, whose status this is."""
        parts: list[bytes] = []
        self._close(parts, status)
        return b"".join(parts)

    def event(self, kind: str, members: dict[str, Any]) -> bytes:
        data = _encode({"type": kind, **members, "sequence_number": self._next()})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _text(self, parts: list[bytes], text: str, *, has_logprobs: bool) -> None:
        if not (has_logprobs and self._logprobs):
            self._delta(parts, text, b',"logprobs":[]')
            return
        found, self._logprobs = self._logprobs, []
        self._item["content"][0]["logprobs"] += found
        self._delta(parts, text, b',"logprobs":' + _encode(found))

    def _delta(self, parts: list[bytes], text: str, more: bytes) -> None:
        self._texts.append(text)
        self._size += len(text)
        if self._size > MAX_CHARACTERS:
            raise Internal(f"the model has written more than {MAX_CHARACTERS} characters")
        parts += (self._head, _encode(text), more, b',"sequence_number":%d}\n\n' % self._next())

    def _open(self, parts: list[bytes], kind: str, members: dict[str, Any]) -> None:
        self._close(parts)
        self._kind = kind
        item_id = f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"
        self._item = {"id": item_id, "type": kind, "status": "in_progress", **members}
        index = len(self.items)
        parts.append(self.event("response.output_item.added", {"output_index": index, "item": self._item}))
        place = {"item_id": item_id, "output_index": index}
        if kind != "function_call":
            place["content_index"] = 0
            part = _part(kind, "")
            parts.append(self.event("response.content_part.added", {**place, "part": part}))
            self._item["content"] = [part]
        name = _DELTAS[kind]
        members = {"type": name, **place}
        self._head = b'event: %b\ndata: %b,"delta":' % (name.encode(), _encode(members)[:-1])

    def _close(self, parts: list[bytes], status: str = "completed") -> None:
        if not self._kind:
            return
        kind, item, text = self._kind, self._item, "".join(self._texts)
        self._kind, self._texts = "", []
        place = {"item_id": item["id"], "output_index": len(self.items)}
        item["status"] = status
        if kind == "function_call":
            item["arguments"] = text
            done = {**place, "name": item["name"], "arguments": text}
            parts.append(self.event("response.function_call_arguments.done", done))
        else:
            part = item["content"][0]
            part["text"] = text
            place["content_index"] = 0
            if kind == "message":
                said = {**place, "text": text, "logprobs": part["logprobs"]}
                parts.append(self.event("response.output_text.done", said))
            else:
                parts.append(self.event("response.reasoning_text.done", {**place, "text": text}))
            parts.append(self.event("response.content_part.done", {**place, "part": part}))
        parts.append(self.event("response.output_item.done", {"output_index": len(self.items), "item": item}))
        self.items.append(item)


_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
