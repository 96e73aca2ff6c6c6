"""Bodies of the Responses API: every field of the official client's types, and some of vLLM's extras.

A field is honoured, refused by name, or taken without a meaning; `docs/openai.md` says which. What may be of several
forms is `Any` here and checked where it is read. Null is as good as absent everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol.http.openai.codec.requests import Fraction, Penalty, Refusals, StreamOptions, Texts


class TextConfig(msgspec.Struct, kw_only=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, kw_only=True):
    effort: str | None = None
    # Taken without a meaning: reasoning is given as it is.
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponseFields(msgspec.Struct, kw_only=True):
    """What responses and the count of their tokens have in common."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: str | None = None
    # Refused.
    conversation: Any = None


class ResponsesRequest(ResponseFields, kw_only=True):
    background: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    top_p: Fraction | None = None
    # Of vLLM.
    frequency_penalty: Penalty | None = None
    ignore_eos: bool | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    priority: int | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    request_id: str | None = None
    seed: int | None = None
    stop: str | Texts | None = None
    top_k: int | None = None
    # Taken without a meaning.
    background_options: Any = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    # Refused.
    access_programs: Any = None
    context_management: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None


class InputTokensRequest(ResponseFields, kw_only=True):
    # Refused.
    personality: Any = None


_REFUSED: Refusals = {
    "conversation": ((), "conversations are not kept; use 'previous_response_id'"),
}
INPUT_TOKENS_REFUSED: Refusals = {**_REFUSED, "personality": ((), "models have none")}
RESPONSES_REFUSED: Refusals = {
    **_REFUSED,
    "access_programs": (({},), "there are none"),
    "context_management": (([],), "items are not edited or summarised"),
    "image": (({},), "only text is supported"),
    "moderation": ((), "answers are not moderated"),
    "prompt": ((), "there are no stored prompts; use 'instructions' and 'input'"),
}
