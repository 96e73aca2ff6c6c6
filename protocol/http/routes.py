"""Route table: every path and method of the main HTTP service, its handler, and the look-up.

Source: reference section "Transport and routing": paths match whole, without a trailing slash, and a literal part
goes before a named one (`/v2/models/stats` is never a model's metadata).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from protocol.access.categories import Category
from protocol.errors import NotFound
from protocol.http.anthropic import handlers as anthropic
from protocol.http.anthropic.errors import REQUEST_ID as ANTHROPIC_REQUEST_ID
from protocol.http.anthropic.errors import anthropic_error_reply
from protocol.http.codec.binary_type import BinaryType
from protocol.http.console import events as console_events
from protocol.http.console import handlers as console_handlers
from protocol.http.errors import ErrorForm, MethodNotAllowed, error_reply
from protocol.http.exchange import Handler, header_text
from protocol.http.handlers import metadata as handlers
from protocol.http.handlers import repository as repository_handlers
from protocol.http.handlers import settings as settings_handlers
from protocol.http.handlers import shared_memory as shared_memory_handlers
from protocol.http.handlers.generate import generate_stream
from protocol.http.handlers.jobs import events as job_events
from protocol.http.handlers.jobs import links as job_links
from protocol.http.handlers.jobs import manage as job_handlers
from protocol.http.handlers.jobs import results as job_results
from protocol.http.handlers.jobs import submit as job_making
from protocol.http.handlers.jobs.submit import generate_or_job, infer_or_job
from protocol.http.handlers.metrics import metrics
from protocol.http.handlers.overview import overview
from protocol.http.handlers.requests import cancel_request
from protocol.http.openai.batches import files
from protocol.http.openai.batches import handlers as batches
from protocol.http.openai.batches.upload import upload_file
from protocol.http.openai.errors import openai_error_reply
from protocol.http.openai.handlers import adapters as openai_adapters
from protocol.http.openai.handlers import health as openai_health
from protocol.http.openai.handlers import models as openai_models
from protocol.http.openai.handlers import sleep as openai_sleep
from protocol.http.openai.handlers.chat import chat_completions
from protocol.http.openai.handlers.completions import completions
from protocol.http.openai.handlers.embeddings import embeddings
from protocol.http.openai.handlers.scores import rerank, score
from protocol.http.openai.handlers.tokens import detokenize, tokenize
from protocol.http.openai.responses import handlers as responses
from protocol.http.openai.responses import kept as kept_responses
from protocol.http.openapi import handlers as openapi_handlers
from protocol.http.settings import Interface


@dataclass(frozen=True, slots=True)
class Route:
    """One operation.

    Attributes:
        path: its pattern; `{name}` stands for one part of any text, `{model_version}` for digits only.
        category: what access rules know it by; one for each path, whatever the method.
        summary: one line for people.
        is_inference: whether it runs a model: it may be traced, and is cancelled when the client leaves.
        makes_jobs: whether it has a model run later.
        may_wait: whether it waits for what a model does, though it runs none: it is cancelled when the client leaves.
        has_binary_tail: whether a body may hold binary tensors behind its JSON, and so exceed `max_input_size`.
        binary_type: a media type that says so too, of the platform that the route is for.
        takes_codings: whether a body may be compressed.
        streams_body: whether its handler reads the body as it comes; it may be as large as a file.
        error_form: how errors are written; one for each path.
        key_header: a header that the caller's key may come in, beside `authorization`; one for each path.
        request_id_header: in which replies have the request's id beside `x-request-id`; one for each path, mostly
            empty.
        is_public: whether it needs no right, as it shows nothing of the models, or judges by itself what it shows; one
            for each path.
    """

    method: str
    path: str
    category: Category
    handler: Handler
    summary: str
    is_inference: bool = False
    makes_jobs: bool = False
    may_wait: bool = False
    has_binary_tail: bool = False
    binary_type: BinaryType | None = None
    takes_codings: bool = True
    streams_body: bool = False
    error_form: ErrorForm = error_reply
    key_header: str = ""
    request_id_header: bytes = b""
    is_public: bool = False

    @property
    def is_act(self) -> bool:
        """Whether it may change the server, and is no inference."""
        return self.method != "GET" and not (self.is_inference or self.makes_jobs)

    @property
    def is_charged(self) -> bool:
        """Whether it costs something of a quota."""
        return self.method == "POST" and (self.is_inference or self.makes_jobs)


def _routes() -> Iterator[Route]:
    yield Route("GET", "/", Category.METADATA, overview, "Where things are on this server")
    yield Route("GET", "/v2", Category.METADATA, handlers.server_metadata, "Server metadata")
    health = Category.HEALTH
    yield Route("GET", "/v2/health/live", health, handlers.server_live, "Whether the server is up")
    yield Route("GET", "/v2/health/ready", health, handlers.server_ready, "Whether the server takes inference requests")
    for model in ("/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"):
        yield Route("GET", model, Category.METADATA, handlers.model_metadata, "Model metadata")
        yield Route("GET", f"{model}/ready", health, handlers.model_ready, "Whether a model is ready")
        yield Route("GET", f"{model}/config", Category.MODEL_CONFIG, handlers.model_config, "Model configuration")
        yield from _inference(model)
        yield Route("GET", f"{model}/stats", Category.STATISTICS, handlers.model_statistics, "Statistics of a model")
    all_models = "Statistics of all ready models"
    yield Route("GET", "/v2/models/stats", Category.STATISTICS, handlers.all_statistics, all_models)
    yield from _jobs()
    yield from _repository()
    yield from _settings()
    yield from _shared_memory()
    yield from _documentation()


def _inference(model: str) -> Iterator[Route]:
    category = Category.INFERENCE
    yield Route("POST", f"{model}/infer", category, infer_or_job, "Inference", is_inference=True, has_binary_tail=True)
    for name, handler, summary in (
        ("generate", generate_or_job, "Inference on plain JSON, one response"),
        ("generate_stream", generate_stream, "Inference on plain JSON, a stream of server-sent events"),
    ):
        path = f"{model}/{name}"
        yield Route("POST", path, category, handler, summary, is_inference=True, takes_codings=False)
    cancel = f"{model}/requests/{{request_id}}/cancel"
    yield Route("POST", cancel, category, cancel_request, "Stop requests by their id")
    making = "Make a job of an inference request"
    yield Route(
        "POST", f"{model}/jobs", category, job_making.create_of_model, making, makes_jobs=True, has_binary_tail=True
    )


def _jobs() -> Iterator[Route]:
    category, one = Category.INFERENCE, "/v2/jobs/{job_id}"
    yield Route("GET", "/v2/jobs", category, job_handlers.list_jobs, "Jobs of the caller")
    yield Route(
        "POST",
        "/v2/jobs",
        category,
        job_making.create_of_list,
        "Make a job of several inference requests",
        makes_jobs=True,
    )
    yield Route("GET", one, category, job_handlers.job_status, "A job", may_wait=True)
    yield Route("DELETE", one, category, job_handlers.remove_job, "Forget a job")
    yield Route("GET", f"{one}/result", category, job_results.job_result, "The result of a job", may_wait=True)
    yield Route("POST", f"{one}/result/link", category, job_links.create_link, "Make a link to the result of a job")
    linked = job_links.linked_result
    yield Route("GET", f"{one}/result/linked", category, linked, "The result of a job, by a link", is_public=True)
    yield Route("GET", f"{one}/events", category, job_events.job_events, "A job as it goes on", may_wait=True)
    yield Route("POST", f"{one}/cancel", category, job_handlers.cancel_job, "Stop a job")


def _repository() -> Iterator[Route]:
    category = Category.MODEL_REPOSITORY
    for path in ("/v2/repository", "/v2/repository/{repository_name}"):
        index = repository_handlers.repository_index
        yield Route("POST", f"{path}/index", category, index, "Models of the repository")
        control = f"{path}/models/{{model_name}}"
        yield Route("POST", f"{control}/load", category, repository_handlers.load_model, "Load or reload a model")
        yield Route("POST", f"{control}/unload", category, repository_handlers.unload_model, "Unload a model")
    yield Route("GET", "/v2/repository", category, repository_handlers.list_repositories, "Model repositories")
    register, unregister = repository_handlers.register_repository, repository_handlers.unregister_repository
    yield Route("POST", "/v2/repository/register", category, register, "Register a model repository")
    yield Route("POST", "/v2/repository/unregister", category, unregister, "Drop a model repository")


def _settings() -> Iterator[Route]:
    for path, of in (("/v2/trace/setting", ""), ("/v2/models/{model_name}/trace/setting", " of a model")):
        yield Route("GET", path, Category.TRACE, settings_handlers.trace_settings, f"Trace settings{of}")
        change = settings_handlers.update_trace_settings
        yield Route("POST", path, Category.TRACE, change, f"Change trace settings{of}")
    yield Route("GET", "/v2/logging", Category.LOGGING, settings_handlers.log_settings, "Log settings")
    change = settings_handlers.update_log_settings
    yield Route("POST", "/v2/logging", Category.LOGGING, change, "Change log settings")


def _shared_memory() -> Iterator[Route]:
    category = Category.SHARED_MEMORY
    for kind, words, calls in (
        ("systemsharedmemory", "system shared memory", shared_memory_handlers.SYSTEM),
        ("cudasharedmemory", "CUDA shared memory", shared_memory_handlers.CUDA),
    ):
        for region in ("", "/region/{region_name}"):
            path = f"/v2/{kind}{region}"
            yield Route("GET", f"{path}/status", category, calls.status, f"Registered {words}")
            yield Route("POST", f"{path}/unregister", category, calls.unregister, f"Unregister {words}")
        path = f"/v2/{kind}/region/{{region_name}}/register"
        yield Route("POST", path, category, calls.register, f"Register {words}")


def _documentation() -> Iterator[Route]:
    category = Category.METADATA
    yield Route("GET", "/v2/docs", category, openapi_handlers.page, "The API as a page", is_public=True)
    document = openapi_handlers.document_of(
        lambda request: routes_of(
            request.settings.interface, has_console=request.settings.console, has_metrics=request.settings.metrics
        )
    )
    yield Route("GET", "/v2/docs/openapi.json", category, document, "The API as an OpenAPI document")
    yield Route("GET", "/v2/docs/{asset_name}", category, openapi_handlers.asset, "Files of the page", is_public=True)


# Under these the errors are so, and the request's id comes in this header too, also where there is no route; the first
# that fits counts.
Forms: TypeAlias = tuple[tuple[bytes, ErrorForm, bytes], ...]
_FORMS: Forms = (
    (b"/v1/messages/", anthropic_error_reply, ANTHROPIC_REQUEST_ID),
    (b"/v1/", openai_error_reply, b""),
)


def _openai() -> Iterator[Route]:
    def route(
        method: str, path: str, category: Category, handler: Handler, summary: str, *, is_inference: bool = False
    ) -> Route:
        return Route(
            method,
            path,
            category,
            handler,
            summary,
            is_inference=is_inference,
            error_form=openai_error_reply,
        )

    for path, handler, summary in (
        ("/v1/chat/completions", chat_completions, "The next message of a chat"),
        ("/v1/completions", completions, "What may follow a prompt"),
        ("/v1/embeddings", embeddings, "Vectors of texts"),
        ("/v1/responses", responses.create, "The answer to some items"),
        ("/score", score, "How well texts fit each other"),
        ("/v1/score", score, "How well texts fit each other"),
        ("/rerank", rerank, "Texts by how well they fit a query"),
        ("/v1/rerank", rerank, "Texts by how well they fit a query"),
        ("/v2/rerank", rerank, "Texts by how well they fit a query"),
    ):
        yield route("POST", path, Category.INFERENCE, handler, summary, is_inference=True)
    yield from _responses(route)
    yield from _batches()
    yield from _anthropic()
    metadata = Category.METADATA
    yield route("GET", "/v1/models", metadata, openai_models.list_models, "Text models and their adapters")
    yield route("GET", "/v1/models/{model_name}", metadata, openai_models.retrieve_model, "A text model or adapter")
    for word, handler in (("load", openai_models.load), ("unload", openai_models.unload)):
        path = f"/v1/models/{{model_name}}/{word}"
        yield route("POST", path, Category.MODEL_REPOSITORY, handler, f"{word.capitalize()} a model")
    for word, handler in (("load", openai_adapters.load), ("unload", openai_adapters.unload)):
        path = f"/v1/{word}_lora_adapter"
        yield route("POST", path, Category.MODEL_REPOSITORY, handler, f"{word.capitalize()} a LoRA adapter of a model")
    yield route("POST", "/tokenize", Category.INFERENCE, tokenize, "The token ids of a text or chat")
    yield route("POST", "/detokenize", Category.INFERENCE, detokenize, "The text of token ids")
    for path, handler, summary in (
        ("/sleep", openai_sleep.sleep, "Put a model to sleep"),
        ("/wake_up", openai_sleep.wake_up, "Wake a model"),
        ("/reset_prefix_cache", openai_sleep.reset_prefix_cache, "Have a model forget the prefixes that it keeps"),
    ):
        yield route("POST", path, Category.MODEL_REPOSITORY, handler, summary)
    yield route("GET", "/is_sleeping", metadata, openai_sleep.is_sleeping, "Whether a model sleeps")
    for path in ("/health", "/ping"):
        yield route("GET", path, Category.HEALTH, openai_health.health, "Whether the server takes requests")
    yield route("POST", "/ping", Category.HEALTH, openai_health.health, "Whether the server takes requests")
    yield route("GET", "/health/ready", Category.HEALTH, openai_health.ready, "Whether the server takes requests")
    yield route("GET", "/version", metadata, openai_health.version, "The server's version")


def _responses(route: Callable[..., Route]) -> Iterator[Route]:
    category = Category.INFERENCE
    yield route("POST", "/v1/responses/input_tokens", category, responses.input_tokens, "The tokens of items")
    one = "/v1/responses/{response_id}"
    # Its events may be read as they come: it ends when the client leaves.
    yield route("GET", one, category, kept_responses.retrieve, "A response that was kept", is_inference=True)
    yield route("DELETE", one, category, kept_responses.delete, "Forget a response")
    yield route("POST", f"{one}/cancel", category, kept_responses.cancel, "Stop a response in the background")
    yield route("GET", f"{one}/input_items", category, kept_responses.input_items, "The items of a response's input")


def _batches() -> Iterator[Route]:
    def route(method: str, path: str, handler: Handler, summary: str, *, makes_jobs: bool = False) -> Route:
        return Route(
            method,
            path,
            Category.INFERENCE,
            handler,
            summary,
            makes_jobs=makes_jobs,
            may_wait=path.endswith("/content"),
            takes_codings=method == "POST" and path != "/v1/files",
            streams_body=method == "POST" and path == "/v1/files",
            error_form=openai_error_reply,
        )

    yield route("POST", "/v1/files", upload_file, "Upload a file with requests", makes_jobs=True)
    yield route("GET", "/v1/files", files.list_files, "Files of the caller")
    yield route("GET", "/v1/files/{file_id}", files.retrieve_file, "A file that is kept")
    yield route("DELETE", "/v1/files/{file_id}", files.delete_file, "Remove a file")
    yield route("GET", "/v1/files/{file_id}/content", files.file_content, "The content of a file")
    yield route("POST", "/v1/batches", batches.create_batch, "Answer the requests in a file", makes_jobs=True)
    yield route("GET", "/v1/batches", batches.list_batches, "Batches of the caller")
    yield route("GET", "/v1/batches/{batch_id}", batches.retrieve_batch, "How a batch stands")
    yield route("POST", "/v1/batches/{batch_id}/cancel", batches.cancel_batch, "Cancel a batch")


def _console() -> Iterator[Route]:
    metadata, statistics, logging = Category.METADATA, Category.STATISTICS, Category.LOGGING
    files = "/v2/console/files/{file_name}"
    yield Route("GET", "/v2/console", metadata, console_handlers.page, "The live console", is_public=True)
    yield Route("GET", files, metadata, console_handlers.page_file, "A file of the console's page", is_public=True)
    allowed = "What the caller's key allows"
    yield Route("GET", "/v2/console/access", metadata, console_handlers.access, allowed, is_public=True)
    changes = "The state of all models, and once a second what has changed"
    # It ends when the client leaves.
    yield Route("GET", "/v2/console/events", statistics, console_events.events, changes, is_inference=True)
    yield Route("GET", "/v2/console/snapshot", statistics, console_handlers.snapshot, "The state of all models")
    yield Route("GET", "/v2/console/history", statistics, console_handlers.history, "The server's last 15 minutes")
    model = "/v2/console/models/{model_name}"
    yield Route("GET", model, statistics, console_handlers.model, "Versions, instances and targets of a model")
    version = f"{model}/versions/{{model_version}}/history"
    yield Route("GET", version, statistics, console_handlers.version_history, "The last 15 minutes of a version")
    yield Route("GET", "/v2/console/requests", statistics, console_handlers.requests, "The requests in flight")
    cancel = "/v2/console/requests/{request_number}/cancel"
    yield Route("POST", cancel, Category.INFERENCE, console_handlers.cancel, "Cancel a request in flight")
    yield Route("GET", "/v2/console/errors", logging, console_handlers.errors, "The last requests that failed")
    yield Route("GET", "/v2/console/log", logging, console_handlers.log, "The last lines of the log")


def _anthropic() -> Iterator[Route]:
    for path, handler, summary, is_inference in (
        ("/v1/messages", anthropic.messages, "The next message of a chat, as Anthropic has it", True),
        ("/v1/messages/count_tokens", anthropic.count_tokens, "The tokens of messages", False),
    ):
        yield Route(
            "POST",
            path,
            Category.INFERENCE,
            handler,
            summary,
            is_inference=is_inference,
            error_form=anthropic_error_reply,
            key_header="x-api-key",
            request_id_header=ANTHROPIC_REQUEST_ID,
        )


ROUTES: tuple[Route, ...] = (*_routes(), *_openai())
CONSOLE: tuple[Route, ...] = tuple(_console())
METRICS = Route("GET", "/metrics", Category.METRICS, metrics, "Metrics of the server")
_BY_INTERFACE: Mapping[Interface, tuple[Route, ...]] = {
    Interface.ALL: ROUTES,
    Interface.INFERENCE: tuple(_routes()),
    # Triton's OpenAI frontend has metrics on its port beside these.
    Interface.OPENAI: (*_openai(), replace(METRICS, error_form=openai_error_reply)),
}
_FORMS_BY_INTERFACE: Mapping[Interface, Forms] = {
    Interface.ALL: _FORMS,
    Interface.INFERENCE: (),
    Interface.OPENAI: (*_FORMS, (b"", openai_error_reply, b"")),
}


def routes_of(interface: Interface, *, has_console: bool = False, has_metrics: bool = False) -> tuple[Route, ...]:
    """The routes of a listener. OpenAI's own has metrics in any case."""
    routes = _BY_INTERFACE[interface]
    if has_metrics and interface is not Interface.OPENAI:
        routes = (*routes, METRICS)
    return (*routes, *CONSOLE) if has_console else routes


# Paths of requests that are remembered, and the length of one: clients ask for few, and for none that is long.
_MOST_REMEMBERED = 1024
_LONGEST_REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path, and its routes by method."""

    category: Category
    routes: Mapping[str, Route]
    error_form: ErrorForm = error_reply
    key_header: str = ""
    request_id_header: bytes = b""
    is_public: bool = False

    def header(self, headers: Mapping[bytes, bytes], name: str) -> str | None:
        """A header as access control reads it: the key may come in another one."""
        value = header_text(headers, name)
        if value is None and name == "authorization" and self.key_header:
            key = header_text(headers, self.key_header)
            return None if key is None else f"Bearer {key}"
        return value

    def route(self, method: str) -> Route:
        """HEAD goes where GET goes.

        Raises:
            MethodNotAllowed: the path does not take this method.
        """
        route = self.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed((*self.routes, "HEAD") if "GET" in self.routes else tuple(self.routes))
        return route


@dataclass(slots=True)
class _Node:
    """One part of a path: what may follow it, and the endpoint if one ends here."""

    literal: dict[str, _Node] = field(default_factory=dict)
    named: dict[str, _Node] = field(default_factory=dict)
    endpoint: Endpoint | None = None


class RouteTable:
    """Raises ValueError where two routes of one path differ in their category."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES, forms: Forms = _FORMS) -> None:
        """`forms` are those of errors at paths without a route."""
        self._forms = forms
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._root = _Node()
        for path, methods in by_path.items():
            node = self._root
            for part in path.split("/")[1:]:
                children = node.named if part.startswith("{") else node.literal
                node = children.setdefault(part.strip("{}"), _Node())
            (category,) = {route.category for route in methods.values()}
            first = next(iter(methods.values()))
            node.endpoint = Endpoint(
                category, methods, first.error_form, first.key_header, first.request_id_header, first.is_public
            )
        self._found: dict[bytes, tuple[Endpoint, Mapping[str, str]]] = {}

    @classmethod
    def of(cls, interface: Interface, *, has_console: bool = False, has_metrics: bool = False) -> RouteTable:
        routes = routes_of(interface, has_console=has_console, has_metrics=has_metrics)
        return cls(routes, _FORMS_BY_INTERFACE[interface])

    def find(self, raw_path: bytes) -> tuple[Endpoint, Mapping[str, str]]:
        """The endpoint at a path, without its query, and the values of the path's parameters.

        Raises:
            NotFound: there is none.
        """
        found = self._found.get(raw_path)
        if found is None:
            found = self._search(raw_path)
            if len(raw_path) <= _LONGEST_REMEMBERED:
                if len(self._found) >= _MOST_REMEMBERED:
                    self._found.clear()
                self._found[raw_path] = found
        return found

    def error_form(self, raw_path: bytes) -> ErrorForm:
        """How errors are written at a path, whether there is an endpoint or not."""
        try:
            return self.find(raw_path)[0].error_form
        except NotFound:
            return next((form for prefix, form, _ in self._forms if raw_path.startswith(prefix)), error_reply)

    def request_id_header(self, raw_path: bytes) -> bytes:
        """As in `Route`, at a path that may have an endpoint or not."""
        try:
            return self.find(raw_path)[0].request_id_header
        except NotFound:
            return next((header for prefix, _, header in self._forms if raw_path.startswith(prefix)), b"")

    def _search(self, raw_path: bytes) -> tuple[Endpoint, Mapping[str, str]]:
        if not raw_path.startswith(b"/"):
            raw_path = _path_of(raw_path)
        parts = [unquote_to_bytes(part).decode("utf-8", "replace") for part in raw_path.split(b"/")[1:]]
        parameters: dict[str, str] = {}
        endpoint = _search(self._root, parts, 0, parameters)
        if endpoint is None:
            raise NotFound("Not Found")
        return endpoint, parameters


def _path_of(target: bytes) -> bytes:
    """The path in the absolute form of a request target (`http://host/path`), which a server must take as well
    (RFC 9112, 3.2.2). All other forms have none."""
    scheme, separator, rest = target.partition(b"://")
    if scheme.lower() not in (b"http", b"https") or not separator:
        return b""
    _, slash, path = rest.partition(b"/")
    return slash + path


def _search(node: _Node, parts: list[str], index: int, parameters: dict[str, str]) -> Endpoint | None:
    """Depth first, literal parts before named ones; the depth is that of the deepest route."""
    if index == len(parts):
        return node.endpoint
    part = parts[index]
    if (child := node.literal.get(part)) and (found := _search(child, parts, index + 1, parameters)):
        return found
    for name, child in node.named.items():
        is_fit = part.isascii() and part.isdigit() if name == "model_version" else part != ""
        if is_fit and (found := _search(child, parts, index + 1, parameters)):
            parameters[name] = part
            return found
    return None
