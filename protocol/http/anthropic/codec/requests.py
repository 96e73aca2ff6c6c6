"""Bodies of the Messages API: every field of the official client's types, honoured, taken, or refused by name.

What may be of several forms is `Any` here and checked where it is read. Null is as good as absent everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol.http.openai.codec.requests import Fraction, Refusals


class Thinking(msgspec.Struct, kw_only=True):
    type: str
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """`type` is there for the tools of Anthropic's own, which are refused."""

    name: Annotated[str, Meta(min_length=1)] | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[dict[str, Any]] | None = None
    # Taken without a meaning.
    cache_control: Any = None
    eager_input_streaming: bool | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: dict[str, Any] | None = None


class MessageFields(msgspec.Struct, kw_only=True):
    """What messages and the count of their tokens have in common."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Taken without a meaning.
    cache_control: Any = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    # Refused.
    speed: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    compaction: Any = None
    thread: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    billing_policy: Any = None


class MessagesRequest(MessageFields, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    # Taken without a meaning.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    # Refused.
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None


class CountTokensRequest(MessageFields, kw_only=True):
    pass


# Nothing is removed. Agents ask for this one.
_ALL_IS_KEPT = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_REFUSED: Refusals = {
    "speed": (("standard",), "models are as fast as they are"),
    "context_management": (({}, {"edits": []}, _ALL_IS_KEPT), "messages are not edited or summarised"),
    "mcp_servers": (([],), "the server calls no tools"),
    "compaction": ((), "messages are not edited or summarised"),
    "thread": ((), "messages are not kept"),
    "fallbacks": (([],), "the model that is named answers"),
    "fallback_credit_token": ((), "the model that is named answers"),
    "billing_policy": ((), "nothing is billed"),
}
COUNT_REFUSED: Refusals = _REFUSED
MESSAGES_REFUSED: Refusals = {
    **_REFUSED,
    "container": ((), "there are no containers"),
    "diagnostics": ((), "caches are not diagnosed"),
    "inference_geo": ((), "the model runs where the server does"),
}
