"""OpenAPI component schemas of the OpenAI interface and of Anthropic's: requests from the structures that read them,
answers by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.http.anthropic.codec.requests import (
    COUNT_REFUSED,
    MESSAGES_REFUSED,
    CountTokensRequest,
    MessagesRequest,
)
from protocol.http.openai.codec.requests import (
    REFUSED,
    Refusals,
)
from protocol.http.openai.responses.requests import (
    INPUT_TOKENS_REFUSED,
    RESPONSES_REFUSED,
    InputTokensRequest,
    ResponsesRequest,
)

_REQUESTS: dict[type[msgspec.Struct], Refusals] = {
    **REFUSED,
    ResponsesRequest: RESPONSES_REFUSED,
    InputTokensRequest: INPUT_TOKENS_REFUSED,
    MessagesRequest: MESSAGES_REFUSED,
    CountTokensRequest: COUNT_REFUSED,
}
_STRING = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_IDS = {"type": "array", "items": _COUNT, "minItems": 1}
_TEXTS_OR_IDS = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": _STRING, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}
_TEXT = {"anyOf": [_STRING, {"type": "object", "properties": {"text": _STRING}}]}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_OBJECTS = {"type": "array", "items": {"type": "object"}}


def openai_schemas(prefix: str) -> dict[str, dict[str, Any]]:
    """By name; `prefix` is that of references. Fields that are always refused are left out."""
    _, made = msgspec.json.schema_components(tuple(_REQUESTS), ref_template=prefix + "{name}")
    for kind, refused in _REQUESTS.items():
        for name, (allowed, _) in refused.items():
            if not allowed:
                del made[kind.__name__]["properties"][name]
    made["CompletionRequest"]["properties"]["prompt"] = _TEXTS_OR_IDS
    made["EmbeddingRequest"]["properties"]["input"] = _TEXTS_OR_IDS
    for name in ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2"):
        made["ScoreRequest"]["properties"][name] = _TEXTS
    made["RerankRequest"]["properties"].update(query=_TEXT, documents=_TEXTS)
    return {**made, **_answers(prefix)}


def _answers(prefix: str) -> dict[str, dict[str, Any]]:
    usage = {"anyOf": [{"$ref": prefix + "Usage"}, {"type": "null"}]}
    model = {"$ref": prefix + "TextModel"}
    error = {
        "message": _STRING,
        "type": _STRING,
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    }
    return {
        "OpenAIError": _object(
            {
                "error": _object(error),
                "detail": {"description": "The sentence, as Triton's frontend has it."},
                "request_id": _STRING,
            },
            required=["error"],
        ),
        "Usage": _object({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}),
        "ChatCompletion": _answer({"usage": usage, "system_fingerprint": {"type": "null"}}),
        "ChatCompletionChunk": _answer({"usage": usage}),
        "Completion": _answer({"usage": usage, "system_fingerprint": {"type": "null"}}),
        "CompletionChunk": _answer({"usage": usage}),
        "Embeddings": _object({"object": _STRING, "data": _OBJECTS, "model": _STRING, "usage": {"type": "object"}}),
        "Scores": _object(
            {"id": _STRING, "object": _STRING, "created": _COUNT, "model": _STRING, "data": _OBJECTS, "usage": usage}
        ),
        "Reranked": _object({"id": _STRING, "model": _STRING, "results": _OBJECTS, "usage": {"type": "object"}}),
        "TextModel": _object(
            {"id": _STRING, "object": _STRING, "created": _COUNT, "owned_by": _STRING, "root": _STRING},
            properties={"parent": {"type": ["string", "null"]}, "max_model_len": {"type": ["integer", "null"]}},
        ),
        "TextModels": _object({"object": _STRING, "data": {"type": "array", "items": model}}),
        "ModelControlDone": _object({"status": _STRING, "model": _STRING}),
        "Tokens": _object(
            {"count": _COUNT, "tokens": {"type": "array", "items": _COUNT}},
            properties={"max_model_len": {"type": ["integer", "null"]}, "token_strs": {"type": ["array", "null"]}},
        ),
        "Text": _object({"prompt": _STRING}),
        "Version": _object({"version": _STRING}),
        **_response_answers(),
        **_anthropic_answers(),
    }


def _response_answers() -> dict[str, dict[str, Any]]:
    members = {"id": _STRING, "object": {"const": "response"}, "created_at": _COUNT, "model": _STRING}
    more = {"error": {"type": ["object", "null"]}, "usage": {"type": ["object", "null"]}}
    return {
        "Response": _object({**members, "status": _STRING, "output": _OBJECTS, **more}),
        "ResponseEvent": _object({"type": _STRING, "sequence_number": _COUNT}),
        "DeletedResponse": _object({"id": _STRING, "object": {"const": "response"}, "deleted": {"const": True}}),
        "InputItems": _object({"object": {"const": "list"}, "data": _OBJECTS, "has_more": {"type": "boolean"}}),
        "InputTokens": _object({"object": {"const": "response.input_tokens"}, "input_tokens": _COUNT}),
    }


def _anthropic_answers() -> dict[str, dict[str, Any]]:
    counts = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    message = {"id": _STRING, "type": {"const": "message"}, "role": {"const": "assistant"}, "model": _STRING}
    ended = {"stop_reason": {"type": ["string", "null"]}, "stop_sequence": {"type": ["string", "null"]}}
    usage = _object(dict.fromkeys(counts, _COUNT))
    return {
        "AnthropicError": _object(
            {"type": {"const": "error"}, "error": _object({"type": _STRING, "message": _STRING})},
            properties={"request_id": _STRING},
        ),
        "Message": _object({**message, "content": _OBJECTS, **ended, "usage": usage}),
        "MessageEvent": _object({"type": _STRING}),
        "TokenCount": _object({"input_tokens": _COUNT}),
    }


def _object(
    members: dict[str, Any], *, required: list[str] | None = None, properties: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All `members` are there, unless only some are `required`; `properties` are more of them."""
    return {
        "type": "object",
        "properties": {**members, **(properties or {})},
        "required": [*members] if required is None else required,
    }


def _answer(more: dict[str, Any]) -> dict[str, Any]:
    members = {"id": _STRING, "object": _STRING, "created": _COUNT, "model": _STRING, "choices": _OBJECTS}
    return _object(members, properties=more)
