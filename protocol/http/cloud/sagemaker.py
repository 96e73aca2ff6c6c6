"""The endpoint that Amazon SageMaker expects of a container: health, invocations, and the control of many models.

Source: Triton's SageMaker endpoint, and Amazon's contracts for containers. Inference and generation are those of the
HTTP service, by other paths, media types and, for models that SageMaker has loaded, statuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from protocol.access.categories import Category
from protocol.errors import (
    AlreadyExists,
    Forbidden,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    ServerError,
    Unauthenticated,
)
from protocol.http.app import HttpApp
from protocol.http.cloud.hosted_models import HostedModel, HostedModels
from protocol.http.cloud.memory_pressure import is_memory_pressure
from protocol.http.cloud.model_urls import DEFAULT_ROOT, checked_url, repository_of, served_name
from protocol.http.cloud.redirected import NOWHERE, UNKNOWN_PATHS, RedirectedExchange, path_part
from protocol.http.codec.binary_type import CONTENT_TYPE, SAGEMAKER_BINARY
from protocol.http.codec.infer import HEADER_LENGTH
from protocol.http.codec.json_text import JsonReader
from protocol.http.errors import LimitError, MethodNotAllowed, error_reply
from protocol.http.exchange import Exchange, Handler, HttpRequest, header_text
from protocol.http.handlers.generate import generate, generate_stream
from protocol.http.handlers.infer import infer_body
from protocol.http.handlers.metadata import server_live, server_ready
from protocol.http.reply import JSON_CONTENT, Reply, json_reply
from protocol.http.route import Route
from protocol.http.route_table import RouteTable
from protocol.http.settings import HttpSettings
from protocol.services import EdgeServices

TARGET_MODEL = "x-amzn-sagemaker-target-model"
# The model that is asked for where none is configured: the error then names the variable.
UNSPECIFIED = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_MEMORY_PRESSURE = 507
# What refuses a call before it comes to a model keeps its status.
_OF_THE_EDGE = (LimitError, Unauthenticated, Forbidden, QuotaExceeded)


@dataclass(frozen=True, slots=True)
class SageMakerSettings:
    """The endpoint.

    Attributes:
        pings_ready: `/ping` tells of readiness; else whether the server lives.
        default_model: the model of `/invocations`.
        inference_type: what `/invocations` runs: `infer`, `generate` or `generate_stream`.
        root: where SageMaker puts the models that it wants loaded.
    """

    pings_ready: bool = True
    default_model: str = ""
    inference_type: str = "infer"
    root: Path = DEFAULT_ROOT


class LoadBody(msgspec.Struct):
    """What a load says; unknown members are ignored."""

    model_name: Any = None
    url: Any = None


_LOAD_READER = JsonReader(LoadBody)


@dataclass(frozen=True, slots=True)
class SageMaker:
    """The application. It finds the model that a request is for, and runs it as a request for that one."""

    services: EdgeServices
    settings: HttpSettings
    sagemaker: SageMakerSettings
    models: HostedModels = field(init=False)
    inner: HttpApp = field(init=False)
    _outer: RouteTable = field(init=False)

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)  # frozen from here on
        put("models", HostedModels(self.services.core))
        seen, inferences = tuple(self._routes()), tuple(_inferences())
        put("_outer", RouteTable(seen, UNKNOWN_PATHS))
        put("inner", HttpApp(self.services, self.settings, RouteTable((*seen, *inferences), UNKNOWN_PATHS)))

    async def __call__(self, exchange: Exchange) -> None:
        await self.inner(RedirectedExchange(exchange, self._path(exchange)))

    def _path(self, exchange: Exchange) -> bytes:
        try:
            endpoint, parameters = self._outer.find(exchange.raw_path)
        except NotFound:
            return NOWHERE
        path = next(iter(endpoint.routes.values())).path
        if path == "/invocations":
            model = path_part(self.sagemaker.default_model or UNSPECIFIED)
            return f"/invocations/{model}/{self.sagemaker.inference_type}".encode()
        if path == "/models/{model_hash}/invoke" and exchange.method == "POST":
            hosted = self.models.find(parameters["model_hash"])
            if hosted is not None:
                target = header_text(exchange.headers, TARGET_MODEL)
                return f"/invoke/{path_part(served_name(target or hosted.name))}".encode()
        return exchange.raw_path

    def _routes(self) -> Iterator[Route]:
        """Those that clients see."""
        yield Route("GET", "/ping", Category.HEALTH, self._ping, "Whether the endpoint takes requests")
        yield _inference("/invocations", _unknown_model, "Inference by the default model")
        category = Category.MODEL_REPOSITORY
        for method, path, handler, summary in (
            ("GET", "/models", self._list, "The models that are loaded"),
            ("POST", "/models", self._load, "Load a model"),
            ("GET", "/models/{model_hash}", self._get, "A model that is loaded"),
            ("DELETE", "/models/{model_hash}", self._unload, "Unload a model"),
        ):
            yield Route(method, path, category, handler, summary, takes_codings=False, error_form=model_error_reply)
        invoke = _inference("/models/{model_hash}/invoke", _unknown_model, "Inference by a model that is loaded")
        yield replace(invoke, error_form=model_error_reply)

    async def _ping(self, request: HttpRequest) -> Reply:
        reply = await (server_ready if self.sagemaker.pings_ready else server_live)(request)
        return reply if reply.status == 200 else Reply(400, JSON_CONTENT, reply.body)

    async def _list(self, request: HttpRequest) -> Reply:
        return json_reply({"models": [_described(*each) for each in self.models.ready()]})

    async def _get(self, request: HttpRequest) -> Reply:
        model_hash = request.path_parameters["model_hash"]
        found = self.models.find(model_hash)
        return Reply(404) if found is None else json_reply(_described(model_hash, found))

    async def _load(self, request: HttpRequest) -> Reply:
        """Replies when the load has ended. A client that leaves earlier does not stop it."""
        body = _LOAD_READER.read(request.body)
        model_hash, url = _string("model_name", body.model_name), _string("url", body.url)
        folder = checked_url(url, self.sagemaker.root)
        name = served_name(header_text(request.headers, TARGET_MODEL) or model_hash)
        repository = await trio.to_thread.run_sync(repository_of, folder, name)
        await self.models.load(model_hash, name, repository)
        return Reply()

    async def _unload(self, request: HttpRequest) -> Reply:
        """Replies when the model is gone."""
        return Reply(200 if await self.models.unload(request.path_parameters["model_hash"]) else 404)


def model_error_reply(error: ServerError) -> Reply:
    """Errors of models that SageMaker has loaded: 507 has it unload others and try again, any other 400 does not."""
    if isinstance(error, MethodNotAllowed):
        return Reply(400)
    reply = error_reply(error)
    if isinstance(error, AlreadyExists):
        reply.status = 409
    elif not isinstance(error, _OF_THE_EDGE):
        reply.status = _MEMORY_PRESSURE if is_memory_pressure(error) else 400
    return reply


def _inferences() -> Iterator[Route]:
    """Those that requests are redirected to."""
    for name, handler in (("infer", _infer), ("generate", generate), ("generate_stream", generate_stream)):
        yield _inference(f"/invocations/{{model_name}}/{name}", handler, "Inference")
    yield replace(_inference("/invoke/{model_name}", _infer, "Inference"), error_form=model_error_reply)


def _inference(path: str, handler: Handler, summary: str) -> Route:
    return Route(
        "POST",
        path,
        Category.INFERENCE,
        handler,
        summary,
        is_inference=True,
        has_binary_tail=True,
        binary_type=SAGEMAKER_BINARY,
        takes_codings=False,
    )


async def _infer(request: HttpRequest) -> Reply:
    """As the HTTP service's, but that media types say what is binary."""
    length = SAGEMAKER_BINARY.header_length(request.headers.get(CONTENT_TYPE), len(request.body))
    reply = await infer_body(request, length)
    headers = dict(reply.headers)
    if (json_size := headers.pop(HEADER_LENGTH, None)) is not None:
        reply.headers = tuple({**headers, CONTENT_TYPE: SAGEMAKER_BINARY.of(int(json_size))}.items())
    return reply


async def _unknown_model(request: HttpRequest) -> Reply:
    return Reply(404)


def _described(model_hash: str, model: HostedModel) -> dict[str, str]:
    return {"modelName": model_hash, "modelUrl": model.repository.path}


def _string(member: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"Unable to parse '{member}': expected a string that is not empty, got {value!r:.40}")
    return value
