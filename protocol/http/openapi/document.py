"""The OpenAPI document, generated from the route table.

Source: OpenAPI 3.1, https://spec.openapis.org/oas/v3.1.1.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

from protocol.access.categories import Category
from protocol.core import ServerMetadata
from protocol.http.openapi.console_schemas import CONSOLE_OPERATIONS
from protocol.http.openapi.model_operations import ModelOperation, model_operations
from protocol.http.openapi.models import JsonObject, ModelDescription, model_tag
from protocol.http.openapi.operations import EVENT_STREAM, OPERATIONS, Operation, shared_path
from protocol.http.openapi.schemas import component_schemas, event_of, reference
from protocol.sync.sliced import Sliced

JSON = "application/json"
BINARY = "application/octet-stream"

_DESCRIPTION = """\
The Open Inference Protocol and Triton's extensions of it, as this server speaks them. Models that are loaded have
operations of their own, with their inputs and outputs; every other operation takes any model's name.

Errors are a JSON object with a sentence in `error`. `HEAD` works where `GET` does. Request bodies may be compressed
with gzip or deflate, but for those of `generate` and `generate_stream`; `infer` compresses its answer by
`Accept-Encoding`. Floats that JSON has no word for are written, and read, as `NaN`, `Infinity` and `-Infinity`."""

_TAGS: Mapping[Category, tuple[str, str]] = {
    Category.INFERENCE: ("Inference", "Run a model."),
    Category.HEALTH: ("Health", "Is the server up, is a model ready?"),
    Category.METADATA: ("Metadata", "What are the server and its models? This document."),
    Category.MODEL_CONFIG: ("Model configuration", "How was a model configured?"),
    Category.MODEL_REPOSITORY: ("Model repository", "List, load and unload models."),
    Category.STATISTICS: ("Statistics", "How much have models done, and how long did it take?"),
    Category.METRICS: ("Metrics", "The same and more, for Prometheus."),
    Category.SHARED_MEMORY: ("Shared memory", "Regions that tensors are read from and written to."),
    Category.TRACE: ("Trace", "Which requests are traced?"),
    Category.LOGGING: ("Logging", "What is logged?"),
}

_PATH_PARAMETERS: Mapping[str, JsonObject] = {
    "model_name": {"description": "A model's name.", "schema": {"type": "string", "minLength": 1}},
    "model_version": {"description": "A version's number.", "schema": {"type": "integer", "minimum": 0}},
    "request_id": {"description": "The `id` of a request.", "schema": {"type": "string", "minLength": 1}},
    "file_id": {"description": "The `id` of a file.", "schema": {"type": "string", "minLength": 1}},
    "batch_id": {"description": "The `id` of a batch.", "schema": {"type": "string", "minLength": 1}},
    "job_id": {"description": "The `id` of a job.", "schema": {"type": "string", "minLength": 1}},
    "repository_name": {"description": "A repository's name.", "schema": {"type": "string", "minLength": 1}},
    "response_id": {"description": "The `id` of a response.", "schema": {"type": "string", "minLength": 1}},
    "file_name": {"description": "A file's name.", "schema": {"type": "string", "minLength": 1}},
    "request_number": {
        "description": "The `number` of a request in flight.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "region_name": {"description": "A region's name.", "schema": {"type": "string", "minLength": 1}},
}

_HEADER_LENGTH: JsonObject = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "How many bytes of the body are JSON; raw tensors follow. 0: the whole body is the only input's "
    "data. Left out: the whole body is JSON.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
_ANSWER_HEADER_LENGTH: JsonObject = {
    "description": "How many bytes of the body are JSON; raw tensors follow, in the order of the outputs.",
    "schema": {"type": "integer"},
}

_FAILURES: Mapping[int, tuple[str, str]] = {
    400: ("BadRequest", "The request is wrong and will be wrong again."),
    404: ("NotFound", "There is no such model, version, region or path."),
    403: ("Forbidden", "The link is not one of this server's."),
    410: ("Expired", "The link's time is over."),
    409: ("Conflict", "Not in this state: it has not ended, or a request with this key is still answered."),
    422: ("IdempotencyMismatch", "The `Idempotency-Key` was used for another request."),
    500: ("Internal", "The server or a model failed; nothing is wrong with the request."),
    501: ("Unsupported", "The server, its settings or the model (a decoupled one) do not support this."),
    503: ("Unavailable", "Not now: loading, stopping, overloaded or not allowed in this mode."),
    504: ("DeadlineExceeded", "The request's own time ran out."),
    507: ("InsufficientStorage", "There is no room to keep the job."),
}
_OTHER_REFUSALS = (
    "Any other refusal: no valid key (401) or not allowed (403); the request came too slowly (408), is too large (413, "
    "its header 431), or is one too many (429)."
)


class DescribedRoute(Protocol):
    """What the document needs of a route."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def category(self) -> Category: ...
    @property
    def has_binary_tail(self) -> bool: ...


def build_document(
    routes: Sequence[DescribedRoute],
    server: ServerMetadata,
    models: Iterable[ModelDescription],
    *,
    asset_names: Sequence[str] = (),
    needs_key: bool = False,
) -> Sliced[JsonObject]:
    """The document of a server with these routes and loaded models, ready for JSON.

    It yields between two operations. `asset_names` are the values of the path parameter `asset_name`;
    `needs_key` says that some calls take a bearer key.
    """
    paths: dict[str, JsonObject] = {}
    table = {(route.method, route.path): route for route in routes}
    names = _parameters_of_names(asset_names)
    tags: list[JsonObject] = []
    for model in models:
        tags.append(model_tag(model))
        for own in model_operations(model):
            if route := table.get(("POST", own.path)):
                paths.setdefault(own.path_of(model), {})["post"] = _model_operation(route, model, own)
            yield
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, names)
        yield
    categories = {route.category for route in routes}
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": server.name, "version": server.version, "description": _DESCRIPTION},
        "tags": [
            *tags,
            *({"name": name, "description": text} for key, (name, text) in _TAGS.items() if key in categories),
        ],
        "paths": paths,
        "components": {"schemas": component_schemas(), "responses": _failure_responses()},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "A key of the server's keys file."}
        }
        document["security"] = [{}, {"key": []}]
    return document


def operation_of(method: str, path: str) -> Operation:
    """The entry of a route; a route without one takes anything and promises nothing."""
    key = f"{method} {shared_path(path)}"
    return OPERATIONS.get(key) or CONSOLE_OPERATIONS.get(key) or Operation()


def _parameters_of_names(asset_names: Sequence[str]) -> Mapping[str, JsonObject]:
    return {
        **_PATH_PARAMETERS,
        "asset_name": {"description": "A file's name.", "schema": {"type": "string", "enum": [*asset_names]}},
    }


def _operation(route: DescribedRoute, names: Mapping[str, JsonObject]) -> JsonObject:
    entry = operation_of(route.method, route.path)
    response = reference(entry.gives) if entry.gives else None
    if response and entry.media_type == EVENT_STREAM:
        response = event_of(response)
    parameters = [
        {"name": name, "in": "path", "required": True, **names[name]} for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in entry.query.items()]
    return _finished(
        route,
        entry,
        tag=_TAGS[route.category][0],
        operation_id=_operation_id(route.method, route.path),
        parameters=parameters,
        request={"schema": reference(entry.takes)} if entry.takes else None,
        response={"schema": response} if response else None,
    )


def _model_operation(route: DescribedRoute, model: ModelDescription, own: ModelOperation) -> JsonObject:
    request: JsonObject = {"schema": own.request}
    if own.request_example is not None:
        request["example"] = own.request_example
    response: JsonObject = {"schema": event_of(own.response) if own.is_stream else own.response}
    if own.response_example is not None:
        example = own.response_example
        response["example"] = f"data: {json.dumps(example)}\n\n" if own.is_stream else example
    return _finished(
        route,
        operation_of(route.method, route.path),
        tag=model.tag,
        operation_id=f"{own.action}.{quote(model.name, safe='')}",
        parameters=[],
        request=request,
        response=response,
    )


def _finished(
    route: DescribedRoute,
    entry: Operation,
    *,
    tag: str,
    operation_id: str,
    parameters: list[JsonObject],
    request: JsonObject | None,
    response: JsonObject | None,
) -> JsonObject:
    if route.has_binary_tail:
        parameters = [*parameters, _HEADER_LENGTH]
    operation: JsonObject = {
        "tags": [tag],
        "operationId": operation_id,
        "summary": route.summary,
        **({"description": entry.description} if entry.description else {}),
        **({"parameters": parameters} if parameters else {}),
    }
    if request is not None:
        content = {entry.takes_type: request, **({BINARY: {}} if route.has_binary_tail else {})}
        operation["requestBody"] = {"required": entry.needs_body, "content": content}
    operation["responses"] = {str(entry.status): _success(route, entry, response), **_failures(route, entry)}
    return operation


def _success(route: DescribedRoute, entry: Operation, response: JsonObject | None) -> JsonObject:
    if response is not None:
        success: JsonObject = {"description": "Done.", "content": {entry.media_type: response}}
        if route.has_binary_tail:
            success["content"][BINARY] = {}
            success["headers"] = {_HEADER_LENGTH["name"]: _ANSWER_HEADER_LENGTH}
        if entry.streams:
            success["content"][EVENT_STREAM] = {"schema": event_of(reference(entry.streams), entry.error)}
        return success
    if entry.media_type != JSON:
        return {"description": "Done.", "content": {entry.media_type: {"schema": {"type": "string"}}}}
    return {"description": "Done; the body is empty."}


def _failures(route: DescribedRoute, entry: Operation) -> JsonObject:
    statuses = {*entry.failures}
    if "{" in route.path:
        statuses |= {400, 404}
    if route.method == "POST":
        # A body that is no JSON, a coding that is not known.
        statuses |= {400, 501} if entry.error == "Error" else {400}
    if entry.error != "Error":
        return _other_failures(statuses, {JSON: {"schema": reference(entry.error)}})
    if entry.media_type == EVENT_STREAM:  # an error of the model comes as an event, with its status
        return _other_failures(statuses, {JSON: {"schema": reference("Error")}, EVENT_STREAM: {}})
    failures = {str(status): _response(_FAILURES[status][0]) for status in sorted(statuses)}
    if entry.is_probe:
        failures["400"] = {"description": "No.", "content": {JSON: {"schema": reference(entry.gives)}}}
    return {**failures, "4XX": _response("Refused")}


def _other_failures(statuses: set[int], content: JsonObject) -> JsonObject:
    """Those of an operation whose errors have another content than most."""
    texts = {str(status): _FAILURES[status][1] for status in sorted(statuses)}
    return {
        name: {"description": text, "content": content} for name, text in (*texts.items(), ("4XX", _OTHER_REFUSALS))
    }


def _response(name: str) -> JsonObject:
    return {"$ref": f"#/components/responses/{name}"}


def _failure_responses() -> JsonObject:
    content = {JSON: {"schema": reference("Error")}}
    return {
        **{name: {"description": text, "content": content} for name, text in _FAILURES.values()},
        "Refused": {"description": _OTHER_REFUSALS, "content": content},
    }


def _operation_id(method: str, path: str) -> str:
    """Unique as method and path are, of characters that also stand in the page's address."""
    return ".".join([method.lower(), *(part.strip("{}") for part in path.split("/")[1:])])
