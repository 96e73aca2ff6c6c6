"""Events of a streamed answer. Most of each is made once: a token costs the JSON text of its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from protocol.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_encode = msgspec.json.encode


class Usage(msgspec.Struct):
    """Tokens of one call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def members(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


class ChunkHead:
    """What all chunks of one call have in common."""

    def __init__(self, response_id: str, kind: str, created: int, model: str, *, has_usage: bool = False) -> None:
        """With `has_usage` each chunk has the member, null but in the last."""
        members = {"id": response_id, "object": kind, "created": created, "model": model}
        self.data = b"data: " + _encode(members)[:-1]
        self.end = b',"usage":null}\n\n' if has_usage else b"}\n\n"

    def usage(self, usage: Usage | None) -> bytes:
        """The chunk without choices that ends a stream whose client wants to know its usage."""
        members = b"null" if usage is None else _encode(usage.members())
        return b'%b,"choices":[],"usage":%b}\n\n' % (self.data, members)

    def ended(self, usage: Usage | None) -> bytes:
        """The end of a chunk, with the usage so far in it."""
        return self.end if usage is None else b',"usage":%b}\n\n' % _encode(usage.members())


class ChatChunks:
    """The chunks of one choice of a chat."""

    def __init__(self, head: ChunkHead, index: int) -> None:
        self._head = head
        self._choice = b'%b,"choices":[{"index":%d,"delta":' % (head.data, index)
        self._content = self._choice + b'{"content":'
        self._plain_end = b'},"logprobs":null,"finish_reason":null}]' + head.end
        self.role = b'%b{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b' % (
            self._choice,
            head.end,
        )

    def content(self, text: str) -> bytes:
        """A chunk of plain text: what most tokens are."""
        return b"".join((self._content, _encode(text), self._plain_end))

    def deltas(
        self,
        deltas: Sequence[Delta],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str = "",
        usage: Usage | None = None,
    ) -> bytes:
        """A chunk for each delta; what is beside them is in the last. One without delta where there is none."""
        *first, last = [delta_members(delta) for delta in deltas] or [{}]
        parts = [self._choice + _encode(each)[:-1] + self._plain_end for each in first]
        parts.append(
            b'%b%b,"logprobs":%b,"finish_reason":%b}]%b'
            % (
                self._choice,
                _encode(last),
                _encode(logprobs),
                _encode(finish_reason or None),
                self._head.ended(usage),
            )
        )
        return b"".join(parts)


class CompletionChunks:
    """The chunks of one choice of a completion."""

    def __init__(self, head: ChunkHead, index: int) -> None:
        self._head = head
        self._choice = b'%b,"choices":[{"index":%d,"text":' % (head.data, index)
        self._plain_end = b',"logprobs":null,"finish_reason":null}]' + head.end

    def content(self, text: str) -> bytes:
        return b"".join((self._choice, _encode(text), self._plain_end))

    def text(
        self,
        text: str,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str = "",
        usage: Usage | None = None,
    ) -> bytes:
        return b'%b%b,"logprobs":%b,"finish_reason":%b}]%b' % (
            self._choice,
            _encode(text),
            _encode(logprobs),
            _encode(finish_reason or None),
            self._head.ended(usage),
        )


def delta_members(delta: Delta) -> dict[str, Any]:
    match delta:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text, "reasoning": text}
        case ToolCallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
