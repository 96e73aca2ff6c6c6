"""The response object: what was asked, how it stands, and its output, usage or error. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from protocol.errors import ServerError
from protocol.http.openai.codec.chunks import Usage
from protocol.http.openai.errors import FieldError, error_object
from protocol.http.openai.responses.requests import ResponsesRequest

_encode = msgspec.json.encode


class ResponseUsage(msgspec.Struct):
    """Tokens of one response."""

    usage: Usage
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def members(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


# Bytes of what an answer repeats of its request. Each of its events may repeat it, too.
MAX_REPEATED_BYTES = 1 << 20


def repeated(body: ResponsesRequest) -> dict[str, msgspec.Raw]:
    """The members that an answer repeats of its request, as JSON. Takes as long as there is to write.

    Raises:
        FieldError: they are too long.
    """
    reasoning, text = body.reasoning, body.text
    members = {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "temperature": body.temperature,
        "text": {"format": (text and text.format) or {"type": "text"}, "verbosity": text and text.verbosity},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }
    made = {name: msgspec.Raw(_encode(value)) for name, value in members.items()}
    if sum(map(len, made.values())) > MAX_REPEATED_BYTES:
        longest = max(made, key=lambda name: len(made[name]))
        raise FieldError(
            f"'{longest}': instructions, tools, metadata and their like may have {MAX_REPEATED_BYTES} bytes together",
            longest,
        )
    return made


class ResponseAnswer:
    """The response object of one call, as it changes."""

    def __init__(
        self, response_id: str, created: int, model: str, repeated: Mapping[str, msgspec.Raw], *, is_stored: bool
    ) -> None:
        self.members: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": created,
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            "service_tier": "default",
            "store": is_stored,
            **repeated,
        }

    @property
    def status(self) -> str:
        status: str = self.members["status"]
        return status

    def queue(self) -> None:
        self.members["status"] = "queued"

    def begin(self) -> None:
        self.members["status"] = "in_progress"

    def end(self, output: Sequence[dict[str, Any]], usage: ResponseUsage | None, *, is_cut: bool, now: int) -> None:
        """`is_cut`: by the most tokens that it may have."""
        self.members["output"] = list(output)
        self.members["usage"] = None if usage is None else usage.members()
        self.members["status"] = "incomplete" if is_cut else "completed"
        if is_cut:
            self.members["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.members["completed_at"] = now

    def fail(self, output: Sequence[dict[str, Any]], error: ServerError) -> None:
        self.members["output"] = list(output)
        self.members["status"] = "failed"
        self.members["error"] = {"code": _failure_code(error), "message": error_object(error)["message"]}

    def cancel(self, output: Sequence[dict[str, Any]]) -> None:
        self.members["output"] = list(output)
        self.members["status"] = "cancelled"

    def is_not_kept(self) -> None:
        self.members["store"] = False

    def encode(self) -> bytes:
        return _encode(self.members)


def error_members(error: ServerError, request_id: str) -> dict[str, Any]:
    """Of the event `error`."""
    described = error_object(error)
    members = {"code": described["code"], "message": described["message"], "param": described["param"]}
    return {**members, "request_id": request_id}


def _failure_code(error: ServerError) -> str:
    """One of the words that the official type has."""
    return "invalid_prompt" if error_object(error)["type"] == "invalid_request_error" else "server_error"
