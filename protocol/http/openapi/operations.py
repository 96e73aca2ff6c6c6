"""OpenAPI descriptions of the routes: request and response schemas, and errors.

Routes that differ only in an optional part of their path (the version, the repository, the region) share an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EVENT_STREAM = "text/event-stream"

_OPTIONAL_PARTS = ("/versions/{model_version}", "/{repository_name}", "/region/{region_name}")


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation beyond its path.

    Attributes:
        description: sentences for people, as Markdown.
        takes: the schema of its JSON body; empty where it takes none.
        takes_type: the media type of its body.
        needs_body: whether a body must come.
        gives: the schema of its JSON answer, or of what each of its events holds; empty for any other answer.
        media_type: of the answer.
        is_probe: whether status 400 means no, with the same members.
        failures: statuses that it may answer with, beside what all do.
        streams: the schema of what each event holds, where the answer is a stream of them if the client wants that.
        error: the schema of its errors.
        query: the schemas of the fields of its query.
        status: of its answer.
    """

    description: str = ""
    takes: str = ""
    takes_type: str = "application/json"
    needs_body: bool = False
    gives: str = ""
    media_type: str = "application/json"
    is_probe: bool = False
    failures: tuple[int, ...] = ()
    streams: str = ""
    error: str = "Error"
    query: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


def shared_path(path: str) -> str:
    """A route's path without its optional parts."""
    for part in _OPTIONAL_PARTS:
        path = path.replace(part, "")
    return path


_MODEL = "/v2/models/{model_name}"
_NOT_LOADED = "Without a version in the path, of the latest version that is ready."
_ALL_REGIONS = "Without a region in the path, of all."
_JOBS = "Only where the server was started with `--jobs-store`."
_DISABLED = "Only where the server was started with `--allow-client-shm=true`."


def _openai(description: str = "", **members: Any) -> Operation:
    return Operation(description, error="OpenAIError", **members)


_RUNS: Mapping[str, Any] = {"needs_body": True, "failures": (404, 500, 503, 504)}
_READY = "The status is the answer, and there is no body."

_SCORE = _openai(
    "As of vLLM: by a model that takes pairs of texts, or by how alike the vectors of a model that embeds are.",
    takes="ScoreRequest",
    gives="Scores",
    **_RUNS,
)
_RERANK = _openai(
    "As of vLLM, Jina and Cohere: by a model that takes pairs of texts, or by how alike the vectors of one that embeds "
    "are.",
    takes="RerankRequest",
    gives="Reranked",
    **_RUNS,
)

_OPENAI: Mapping[str, Operation] = {
    "POST /v1/chat/completions": _openai(
        "OpenAI's chat, for any model with text in and text out, and a chat template.",
        takes="ChatRequest",
        gives="ChatCompletion",
        streams="ChatCompletionChunk",
        **_RUNS,
    ),
    "POST /v1/completions": _openai(
        "OpenAI's completions, for any model with text in and text out.",
        takes="CompletionRequest",
        gives="Completion",
        streams="CompletionChunk",
        **_RUNS,
    ),
    "POST /v1/embeddings": _openai(
        "OpenAI's embeddings, for models with text in and a vector out.",
        takes="EmbeddingRequest",
        gives="Embeddings",
        **_RUNS,
    ),
    **dict.fromkeys(("POST /score", "POST /v1/score"), _SCORE),
    **dict.fromkeys(("POST /rerank", "POST /v1/rerank", "POST /v2/rerank"), _RERANK),
    "POST /v1/responses": _openai(
        "OpenAI's responses, for any model with text in and text out, and a chat template.",
        takes="ResponsesRequest",
        gives="Response",
        streams="ResponseEvent",
        **_RUNS,
    ),
    "POST /v1/responses/input_tokens": _openai(
        "What the prompt of these items has.",
        takes="InputTokensRequest",
        needs_body=True,
        gives="InputTokens",
        failures=(404, 503),
    ),
    "GET /v1/responses/{response_id}": _openai(
        "For the key that made it; with `stream` the events of one in the background, after the one of that number.",
        gives="Response",
        query={"stream": {"type": "boolean"}, "starting_after": {"type": "integer", "minimum": -1}},
    ),
    "DELETE /v1/responses/{response_id}": _openai("One in the background is stopped.", gives="DeletedResponse"),
    "POST /v1/responses/{response_id}/cancel": _openai("The response, as it is then.", gives="Response"),
    "GET /v1/responses/{response_id}/input_items": _openai(
        "The last ones first, unless they are to be in order.",
        gives="InputItems",
        query={
            "order": {"enum": ["asc", "desc"]},
            "after": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        },
    ),
    "GET /v1/models": _openai("Those with text.", gives="TextModels", failures=(503,)),
    "GET /v1/models/{model_name}": _openai("One of those with text.", gives="TextModel", failures=(503,)),
    "POST /v1/models/{model_name}/load": _openai(
        "Replies when the load has ended.", gives="ModelControlDone", failures=(500, 503)
    ),
    "POST /v1/models/{model_name}/unload": _openai(
        "Replies when the unload has begun.", gives="ModelControlDone", failures=(500, 503)
    ),
    "POST /v1/load_lora_adapter": _openai(
        "Replies when requests may use it. Only where the server was started with `--openai-lora-path`.",
        takes="LoadAdapterRequest",
        needs_body=True,
        media_type="text/plain",
        failures=(404, 500, 503),
    ),
    "POST /v1/unload_lora_adapter": _openai(
        "Replies when the requests that use it have ended. Only where the server was started with "
        "`--openai-lora-path`.",
        takes="UnloadAdapterRequest",
        needs_body=True,
        media_type="text/plain",
        failures=(404, 500, 503),
    ),
    "POST /tokenize": _openai(
        "Of a text, or of a chat in the model's template.",
        takes="TokenizeRequest",
        needs_body=True,
        gives="Tokens",
        failures=(404, 503),
    ),
    "POST /detokenize": _openai(takes="DetokenizeRequest", needs_body=True, gives="Text", failures=(404, 503)),
    "POST /sleep": _openai(
        "Replies when its requests have ended, and its memory is free: `level` 1 or 2, and `model` where there are "
        "several, in the query. Only where the server was started with `--openai-sleep-mode=true`.",
        failures=(404, 500, 503),
    ),
    "POST /wake_up": _openai("Replies when it takes requests.", failures=(404, 500, 503)),
    "POST /reset_prefix_cache": _openai("For all requests that begin from now on.", failures=(404, 500, 503)),
    "GET /is_sleeping": _openai("With `model` in the query where there are several.", failures=(404, 503)),
    "GET /health": _openai(_READY, failures=(503,)),
    "GET /ping": _openai(_READY, failures=(503,)),
    "POST /ping": _openai(_READY, failures=(503,)),
    "GET /health/ready": _openai(_READY, failures=(400,)),
    "GET /version": _openai(gives="Version"),
}

_PAGE: Mapping[str, Any] = {
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
}
_BATCHES: Mapping[str, Operation] = {
    "POST /v1/files": _openai(
        f"JSON lines, each with a request. The file is written as it comes. {_JOBS}",
        takes="FileUpload",
        takes_type="multipart/form-data",
        needs_body=True,
        gives="File",
        failures=(501, 507),
    ),
    "GET /v1/files": _openai(
        f"The newest first, unless they are to be in order. {_JOBS}",
        gives="FilePage",
        query={
            **_PAGE,
            "limit": {"type": "integer", "minimum": 1, "maximum": 10000},
            "order": {"enum": ["asc", "desc"]},
            "purpose": {"type": "string"},
        },
        failures=(400, 501),
    ),
    "GET /v1/files/{file_id}": _openai(gives="File", failures=(501,)),
    "DELETE /v1/files/{file_id}": _openai(
        "Not while a batch that has not ended reads it.", gives="FileRemoved", failures=(501,)
    ),
    "GET /v1/files/{file_id}/content": _openai(media_type="application/octet-stream", failures=(501,)),
    "POST /v1/batches": _openai(
        f"The lines are read afterwards; what is wrong with them is in `errors` of the batch. {_JOBS}",
        takes="BatchRequest",
        needs_body=True,
        gives="Batch",
        failures=(422, 501, 503, 507),
    ),
    "GET /v1/batches": _openai(f"The newest first. {_JOBS}", gives="BatchPage", query=_PAGE, failures=(400, 501)),
    "GET /v1/batches/{batch_id}": _openai(gives="Batch", failures=(501,)),
    "POST /v1/batches/{batch_id}/cancel": _openai(
        "The batch as it is then; what was answered is in its files when it is cancelled.",
        gives="Batch",
        failures=(501, 507),
    ),
}

_ANTHROPIC: Mapping[str, Operation] = {
    "POST /v1/messages": Operation(
        "Anthropic's messages, for any model with text in and text out, and a chat template.",
        takes="MessagesRequest",
        gives="Message",
        streams="MessageEvent",
        error="AnthropicError",
        **_RUNS,
    ),
    "POST /v1/messages/count_tokens": Operation(
        "What the prompt of these messages has.",
        takes="CountTokensRequest",
        needs_body=True,
        gives="TokenCount",
        error="AnthropicError",
        failures=(404, 503),
    ),
}

OPERATIONS: Mapping[str, Operation] = {
    "GET /": Operation("A page for clients that take HTML.", gives="Overview"),
    "GET /v2": Operation(gives="ServerMetadata"),
    "GET /metrics": Operation("In Prometheus' text form, or as OpenMetrics by `Accept`.", media_type="text/plain"),
    "GET /v2/health/live": Operation(
        "The status is the answer, and the body says the same.", gives="ServerLive", is_probe=True, failures=(503,)
    ),
    "GET /v2/health/ready": Operation(
        "The status is the answer, and the body says the same.", gives="ServerReady", is_probe=True, failures=(503,)
    ),
    f"GET {_MODEL}/ready": Operation(
        "The status is the answer, and the body says the same.", gives="ModelReady", failures=(503,)
    ),
    f"GET {_MODEL}": Operation("Its tensors and its ready versions.", gives="ModelMetadata", failures=(503,)),
    f"GET {_MODEL}/config": Operation(_NOT_LOADED, gives="ModelConfig", failures=(503,)),
    f"GET {_MODEL}/stats": Operation(
        "Without a version in the path, of all its ready versions.", gives="StatisticsResponse", failures=(503,)
    ),
    "GET /v2/models/stats": Operation(gives="StatisticsResponse", failures=(503,)),
    f"POST {_MODEL}/infer": Operation(
        "Tensors come as JSON, or as raw bytes behind the JSON, whose length is then in the header "
        "`Inference-Header-Content-Length`.",
        takes="InferRequest",
        needs_body=True,
        gives="InferResponse",
        failures=(404, 500, 503, 504),
    ),
    f"POST {_MODEL}/generate": Operation(
        "For models that give exactly one response.",
        takes="GenerateRequest",
        needs_body=True,
        gives="GenerateResponse",
        failures=(404, 500, 503, 504),
    ),
    f"POST {_MODEL}/generate_stream": Operation(
        "Responses as server-sent events. An error of the model is one, too, with its status if it is the first.",
        takes="GenerateRequest",
        needs_body=True,
        gives="GenerateResponse",
        media_type=EVENT_STREAM,
        failures=(404, 500, 503, 504),
    ),
    f"POST {_MODEL}/requests/{{request_id}}/cancel": Operation(
        "Stops all requests of the model, or of the version in the path, that have this id and are under way; each is "
        "answered as cancelled.",
        gives="CancelResponse",
        failures=(404, 503),
    ),
    f"POST {_MODEL}/jobs": Operation(
        f"Kept until it is answered, whatever becomes of its client or the server. Takes what `infer` takes. {_JOBS}",
        takes="InferRequest",
        needs_body=True,
        gives="Job",
        status=202,
        failures=(404, 409, 422, 503, 507),
        query={
            "timeout": {"type": "integer", "minimum": 1},
            "webhook": {"type": "string"},
            "webhook_events": {"type": "string"},
        },
    ),
    "POST /v2/jobs": Operation(
        f"Each request is one of inference as JSON, with the name of its model; or they are the rows of files. {_JOBS}",
        takes="JobRequests",
        needs_body=True,
        gives="Job",
        status=202,
        failures=(404, 409, 422, 503, 507),
    ),
    "GET /v2/jobs": Operation(
        f"The newest first. `after` is the `next` of the page before. {_JOBS}",
        gives="JobPage",
        query={
            "state": {"type": "string"},
            "model": {"type": "string"},
            "after": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        },
        failures=(400, 501),
    ),
    "GET /v2/jobs/{job_id}": Operation(
        "With `Prefer: wait=<seconds>` when it has ended.", gives="Job", failures=(501,)
    ),
    "DELETE /v2/jobs/{job_id}": Operation(
        "One that has not ended is stopped first.", gives="JobRemoved", failures=(501, 503)
    ),
    "GET /v2/jobs/{job_id}/result": Operation(
        "As `infer` or `generate` would have answered it; of a list a line of JSON for each. With `item` that of "
        "one of them.",
        media_type="*/*",
        query={"item": {"type": "integer", "minimum": 0}},
        failures=(409, 500, 501, 503, 504),
    ),
    "POST /v2/jobs/{job_id}/result/link": Operation(
        "The URL that it gives, relative to that of the server, is readable without a key until it expires.",
        takes="ResultLinkRequest",
        gives="ResultLink",
        failures=(501, 503, 507),
    ),
    "GET /v2/jobs/{job_id}/result/linked": Operation(
        "The same as the result itself, for who has a link with its signature.",
        media_type="*/*",
        query={
            "item": {"type": "integer", "minimum": 0},
            "expires": {"type": "integer", "minimum": 0},
            "signature": {"type": "string"},
        },
        failures=(403, 409, 410, 500, 501, 503, 504),
    ),
    "GET /v2/jobs/{job_id}/events": Operation(
        "Server-sent events `state` (the job), `progress` (its counts) and `partial` (a part of a result), until it "
        "has ended.",
        gives="Job",
        media_type=EVENT_STREAM,
        failures=(501,),
    ),
    "POST /v2/jobs/{job_id}/cancel": Operation(
        "The job as it is then; what runs is given up.", gives="Job", failures=(503, 507)
    ),
    "POST /v2/repository/index": Operation(takes="IndexRequest", gives="IndexResponse", failures=(503,)),
    "POST /v2/repository/models/{model_name}/load": Operation(
        "Replies when the load has ended. A named repository is not supported.",
        takes="LoadRequest",
        failures=(500, 503),
    ),
    "POST /v2/repository/models/{model_name}/unload": Operation(
        "Replies when the unload has begun. A named repository is not supported.",
        takes="UnloadRequest",
        failures=(500, 503),
    ),
    "GET /v2/repository": Operation("Those that models are looked for in.", gives="Repositories", failures=(503,)),
    "POST /v2/repository/register": Operation(
        "From now on its models can be loaded; none is loaded by that. Only in explicit mode.",
        takes="Repository",
        needs_body=True,
        failures=(501, 503),
    ),
    "POST /v2/repository/unregister": Operation(
        "From now on its models cannot be loaded; those that serve go on. Only in explicit mode.",
        takes="Repository",
        needs_body=True,
        failures=(501, 503),
    ),
    "GET /v2/systemsharedmemory/status": Operation(_ALL_REGIONS, gives="SystemRegions"),
    "GET /v2/cudasharedmemory/status": Operation(_ALL_REGIONS, gives="CudaRegions"),
    "POST /v2/systemsharedmemory/register": Operation(
        _DISABLED, takes="SystemRegistration", needs_body=True, failures=(500, 503)
    ),
    "POST /v2/cudasharedmemory/register": Operation(
        _DISABLED, takes="CudaRegistration", needs_body=True, failures=(500, 503)
    ),
    "POST /v2/systemsharedmemory/unregister": Operation(f"{_ALL_REGIONS} {_DISABLED}", failures=(500,)),
    "POST /v2/cudasharedmemory/unregister": Operation(f"{_ALL_REGIONS} {_DISABLED}", failures=(500,)),
    "GET /v2/trace/setting": Operation(gives="TraceSettings"),
    f"GET {_MODEL}/trace/setting": Operation(gives="TraceSettings", failures=(503,)),
    "POST /v2/trace/setting": Operation(
        "Replies with all settings.", takes="TraceSettingsUpdate", needs_body=True, gives="TraceSettings"
    ),
    f"POST {_MODEL}/trace/setting": Operation(
        "Replies with all settings.",
        takes="TraceSettingsUpdate",
        needs_body=True,
        gives="TraceSettings",
        failures=(404, 503),
    ),
    "GET /v2/logging": Operation(gives="LogSettings"),
    "POST /v2/logging": Operation(
        "Replies with all settings.",
        takes="LogSettingsUpdate",
        needs_body=True,
        gives="LogSettings",
        failures=(503,),
    ),
    **_OPENAI,
    **_BATCHES,
    **_ANTHROPIC,
    "GET /v2/docs": Operation("This page.", media_type="text/html"),
    "GET /v2/docs/openapi.json": Operation("This document.", gives="OpenApi", failures=(503,)),
    "GET /v2/docs/{asset_name}": Operation("What the page is made of.", media_type="*/*"),
}
