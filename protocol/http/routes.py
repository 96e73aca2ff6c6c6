"""The routes of the main HTTP service: every path and method of a listener, and its handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from protocol.access.categories import Category
from protocol.http.anthropic.routes import ANTHROPIC_FORMS, anthropic_routes
from protocol.http.console import events as console_events
from protocol.http.console import handlers as console_handlers
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
from protocol.http.openai.errors import openai_error_reply
from protocol.http.openai.routes import OPENAI_FORMS, openai_routes
from protocol.http.openapi import handlers as openapi_handlers
from protocol.http.route import Route
from protocol.http.route_table import Forms, RouteTable
from protocol.http.settings import Interface


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
        load = repository_handlers.load_model
        yield Route("POST", f"{control}/load", category, load, "Load or reload a model", takes_files=True)
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


_TEXT: tuple[Route, ...] = (*openai_routes(), *anthropic_routes())
_TEXT_FORMS: Forms = (*ANTHROPIC_FORMS, *OPENAI_FORMS)
ROUTES: tuple[Route, ...] = (*_routes(), *_TEXT)
CONSOLE: tuple[Route, ...] = tuple(_console())
METRICS = Route("GET", "/metrics", Category.METRICS, metrics, "Metrics of the server")
_BY_INTERFACE: Mapping[Interface, tuple[Route, ...]] = {
    Interface.ALL: ROUTES,
    Interface.INFERENCE: tuple(_routes()),
    # Triton's OpenAI frontend has metrics on its port beside these.
    Interface.OPENAI: (*_TEXT, replace(METRICS, error_form=openai_error_reply)),
}
_FORMS_BY_INTERFACE: Mapping[Interface, Forms] = {
    Interface.ALL: _TEXT_FORMS,
    Interface.INFERENCE: (),
    Interface.OPENAI: (*_TEXT_FORMS, (b"", openai_error_reply, b"")),
}


def routes_of(interface: Interface, *, has_console: bool = False, has_metrics: bool = False) -> tuple[Route, ...]:
    """The routes of a listener. OpenAI's own has metrics in any case."""
    routes = _BY_INTERFACE[interface]
    if has_metrics and interface is not Interface.OPENAI:
        routes = (*routes, METRICS)
    return (*routes, *CONSOLE) if has_console else routes


def route_table(
    interface: Interface = Interface.ALL, *, has_console: bool = False, has_metrics: bool = False
) -> RouteTable:
    """The routes of a listener, see `routes_of`, and how errors are written beside them."""
    routes = routes_of(interface, has_console=has_console, has_metrics=has_metrics)
    return RouteTable(routes, _FORMS_BY_INTERFACE[interface])
