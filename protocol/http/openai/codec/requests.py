"""Bodies of the OpenAI interface: every field of the official client's types, and vLLM's extras.

A field is honoured, refused by name (`refusals`), or taken without a meaning; `docs/openai.md` says which. What may be
of several forms is `Any` here and checked where it is read. Null is as good as absent everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]

MAX_CHOICES = 128
# What becomes a list or an object of so many holds the loop.
Texts: TypeAlias = Annotated[list[str], Meta(max_length=1024)]
TokenIds: TypeAlias = Annotated[list[int], Meta(max_length=1024)]
Biases: TypeAlias = Annotated[dict[str, float], Meta(max_length=1024)]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    min_p: Fraction | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    length_penalty: float | None = None
    seed: int | None = None
    stop: str | Texts | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: Texts | None = None
    allowed_token_ids: Annotated[list[int], Meta(max_length=1 << 16)] | None = None
    logit_bias: Biases | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    return_tokens_as_token_ids: bool | None = None
    # Taken without a meaning.
    user: str | None = None
    # Refused.
    prompt_logprobs: Any = None
    return_token_ids: Any = None
    use_beam_search: Any = None
    cache_salt: Any = None
    kv_transfer_params: Any = None
    logits_processors: Any = None
    vllm_xargs: Any = None


class ChatRequest(SamplingFields, kw_only=True):
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Taken without a meaning.
    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
    prediction: Any = None
    verbosity: str | None = None
    # Refused.
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    functions: Any = None
    function_call: Any = None
    chat_template: Any = None
    echo: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: Any
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    # Refused.
    suffix: Any = None
    prompt_embeds: Any = None


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    input: Any
    model: str | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    encoding_format: str | None = None
    user: str | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    # Refused.
    messages: Any = None
    normalize: Any = None


class ScoringFields(msgspec.Struct, kw_only=True):
    """What scores and reranking have in common."""

    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: str | None = None
    max_tokens_per_query: Count | None = None
    max_tokens_per_doc: Count | None = None
    use_activation: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    # Taken without a meaning.
    user: str | None = None
    # Refused.
    padding: Any = None
    instruction: Any = None
    chat_template_kwargs: Any = None
    mm_processor_kwargs: Any = None
    cache_salt: Any = None
    normalize: Any = None


class ScoreRequest(ScoringFields, kw_only=True):
    """Two texts, or lists of them, under one of the pairs of names that vLLM knows."""

    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None


class RerankRequest(ScoringFields, kw_only=True):
    query: Any
    documents: Any
    top_n: Count | None = None
    return_documents: bool | None = None
    # Refused.
    rank_fields: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Refused.
    chat_template: Any = None
    mm_processor_kwargs: Any = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    lora_name: str | None = None
    lora_int_id: int | None = None
    # Which model is meant, where several have adapters.
    model: str | None = None
    base_model_name: str | None = None


class LoadAdapterRequest(UnloadAdapterRequest, kw_only=True):
    lora_path: str | None = None
    load_inplace: bool | None = None


# Fields that may only have these values, beside null, and what to do about it.
Refusals: TypeAlias = dict[str, tuple[tuple[Any, ...], str]]

_REFUSED_EVERYWHERE: Refusals = {
    "prompt_logprobs": ((), "logprobs of the prompt are not supported"),
    "return_token_ids": ((False,), "token ids are not part of answers; /tokenize gives those of a text"),
    "use_beam_search": ((False,), "beam search is not supported"),
    "cache_salt": ((), "prefix caches are shared by all clients here"),
    "kv_transfer_params": ((), "caches are not transferred"),
    "logits_processors": (([],), "logits processors are not supported"),
    "vllm_xargs": (({},), "extra arguments are not passed on"),
}
_REFUSED_IN_CHAT: Refusals = {
    "modalities": ((["text"], []), 'models answer with text: expected ["text"]'),
    "audio": ((), "models answer with text"),
    "web_search_options": ((), "there is no web search"),
    "moderation": ((), "answers are not moderated"),
    "functions": ((), "deprecated; use 'tools'"),
    "function_call": (("none",), "deprecated; use 'tool_choice'"),
    "chat_template": ((), "the template is the model's own; 'chat_template_kwargs' has its switches"),
    "echo": ((False,), "chats are not echoed"),
    "mm_processor_kwargs": (({},), "pictures are prepared as the model's own files say"),
    "media_io_kwargs": (({},), "pictures are read as they are"),
}
_REFUSED_IN_COMPLETIONS: Refusals = {
    "suffix": (("",), "suffix is not currently supported"),
    "prompt_embeds": ((), "prompts are text or token ids"),
}
_REFUSED_IN_EMBEDDINGS: Refusals = {
    "messages": ((), "chats are not embedded; use 'input'"),
    "normalize": ((), "vectors are as the model gives them"),
}
_REFUSED_IN_SCORES: dict[str, tuple[tuple[Any, ...], str]] = {
    "truncation_side": (("right",), "texts are cut at their end"),
    "padding": (("do_not_pad",), "pairs are filled up as the model needs it"),
    "instruction": ((), "pairs are joined by the tokenizer, without a template"),
    "chat_template_kwargs": (({},), "pairs are joined by the tokenizer, without a template"),
    "mm_processor_kwargs": (({},), "only text is supported"),
    "cache_salt": ((), "prefix caches are shared by all clients here"),
    "normalize": ((), "use 'use_activation'"),
}
_REFUSED_IN_RERANK: dict[str, tuple[tuple[Any, ...], str]] = {
    **_REFUSED_IN_SCORES,
    "rank_fields": ((["text"],), "of a document only its text is read"),
}
_REFUSED_IN_TOKENIZE = {key: _REFUSED_IN_CHAT[key] for key in ("chat_template", "mm_processor_kwargs")}

REFUSED: dict[type, Refusals] = {
    ChatRequest: {**_REFUSED_EVERYWHERE, **_REFUSED_IN_CHAT},
    CompletionRequest: {**_REFUSED_EVERYWHERE, **_REFUSED_IN_COMPLETIONS},
    EmbeddingRequest: _REFUSED_IN_EMBEDDINGS,
    ScoreRequest: _REFUSED_IN_SCORES,
    RerankRequest: _REFUSED_IN_RERANK,
    TokenizeRequest: _REFUSED_IN_TOKENIZE,
    DetokenizeRequest: {},
    LoadAdapterRequest: {},
    UnloadAdapterRequest: {},
}
