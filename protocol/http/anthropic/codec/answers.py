"""Answers of the Messages API: the message, why it ended, its tokens, and the events around its blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from protocol.http.anthropic.codec.blocks import event

PING = event("ping", {"type": "ping"})
_STOP = event("message_stop", {"type": "message_stop"})


class MessageUsage(msgspec.Struct):
    """Tokens of one message; 0 where neither the model nor a tokenizer can count them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def members(self) -> dict[str, int]:
        """Anthropic counts what was read from a cache apart from the rest of the prompt."""
        return {
            "input_tokens": max(self.input_tokens - self.cached_tokens, 0),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
        }


class Stop(msgspec.Struct, frozen=True):
    """Why an answer has ended; `sequence` is the stop sequence that ended it."""

    reason: str
    sequence: str | None = None

    def members(self) -> dict[str, str | None]:
        return {"stop_reason": self.reason, "stop_sequence": self.sequence}


def stop_of(finish_reason: str, sequence: str | None, *, has_calls: bool, is_context_full: bool) -> Stop:
    """From why a choice of a chat has ended. `is_context_full`: the context had no room for more."""
    if finish_reason == "length":
        return Stop("model_context_window_exceeded" if is_context_full else "max_tokens")
    if sequence is not None:
        return Stop("stop_sequence", sequence)
    return Stop("tool_use" if has_calls else "end_turn")


def message(
    message_id: str, model: str, content: Sequence[dict[str, Any]], usage: MessageUsage, stop: Stop | None = None
) -> dict[str, Any]:
    ended = {"stop_reason": None, "stop_sequence": None} if stop is None else stop.members()
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **ended,
        "usage": usage.members(),
    }


def message_start(message_id: str, model: str, usage: MessageUsage) -> bytes:
    return event("message_start", {"type": "message_start", "message": message(message_id, model, [], usage)})


def message_end(stop: Stop, usage: MessageUsage) -> bytes:
    """The last two events; the counts are those of the whole message."""
    return event("message_delta", {"type": "message_delta", "delta": stop.members(), "usage": usage.members()}) + _STOP
