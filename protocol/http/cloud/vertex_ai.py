"""The endpoint that Google Vertex AI expects of a container: health, and predictions by one model.

Source: Triton's Vertex AI endpoint, and Google's contract for custom containers. A header of a prediction has it run as
another request of the HTTP service, as far as that does not change the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.access.categories import Category
from protocol.errors import Forbidden, NotFound, ServerError
from protocol.http.app import HttpApp
from protocol.http.cloud.redirected import NOWHERE, UNKNOWN_PATHS, RedirectedExchange, path_part
from protocol.http.codec.binary_type import CONTENT_TYPE, VERTEX_AI_BINARY
from protocol.http.codec.infer import HEADER_LENGTH, parse_header_length
from protocol.http.exchange import Exchange, HttpRequest
from protocol.http.handlers import metadata as handlers
from protocol.http.handlers.infer import infer_body
from protocol.http.handlers.repository import repository_index
from protocol.http.handlers.shared_memory import CUDA, SYSTEM
from protocol.http.reply import JSON_CONTENT, Reply
from protocol.http.route import Route
from protocol.http.route_table import RouteTable
from protocol.http.routes import METRICS
from protocol.http.settings import HttpSettings
from protocol.services import EdgeServices

REDIRECT = b"x-vertex-ai-triton-redirect"
_UNKNOWN_MODEL = "unspecified_vertex_ai_default_model"


@dataclass(frozen=True, slots=True)
class VertexAISettings:
    """The endpoint.

    Attributes:
        predict_route: the path of predictions.
        health_route: the path of health.
        default_model: the model of predictions; empty for the only one that there is.
    """

    predict_route: str
    health_route: str
    default_model: str = ""


@dataclass(slots=True)
class VertexAI:
    """The application: runs requests as others, by their path and header."""

    services: EdgeServices
    settings: HttpSettings
    vertex: VertexAISettings
    inner: HttpApp = field(init=False)
    _routes: RouteTable = field(init=False)
    _only_model: str = ""

    def __post_init__(self) -> None:
        self._routes = RouteTable(tuple(_routes()), UNKNOWN_PATHS)
        self.inner = HttpApp(self.services, self.settings, self._routes)

    async def __call__(self, exchange: Exchange) -> None:
        path, method = await self._target(exchange)
        await self.inner(RedirectedExchange(exchange, path, method))

    async def _target(self, exchange: Exchange) -> tuple[bytes, str]:
        path = exchange.raw_path.decode("latin-1")
        if path == self.vertex.health_route:
            return b"/v2/health/ready", exchange.method
        if path != self.vertex.predict_route:
            return NOWHERE, exchange.method
        redirect = exchange.headers.get(REDIRECT)
        if redirect is None or exchange.method != "POST":
            return f"/v2/models/{path_part(await self._default_model())}/infer".encode(), exchange.method
        wanted = b"/" + redirect
        try:
            endpoint, _ = self._routes.find(wanted)
        except NotFound:
            return NOWHERE, exchange.method
        return wanted, next(iter(endpoint.routes))

    async def _default_model(self) -> str:
        if self.vertex.default_model:
            return self.vertex.default_model
        if not self._only_model:
            try:
                index = await self.services.core.repository_index(ready=True)
            except ServerError:  # while it starts, or stops: the model's request is answered so, too
                return _UNKNOWN_MODEL
            names = {entry.name for entry in index}
            if len(names) != 1:
                return _UNKNOWN_MODEL
            self._only_model = names.pop()
        return self._only_model


def _routes() -> Iterator[Route]:
    """What requests may be redirected to. One path has one method."""
    category = Category.METADATA
    yield METRICS
    yield Route("GET", "/v2", category, handlers.server_metadata, "Server metadata")
    yield Route("GET", "/v2/health/live", Category.HEALTH, handlers.server_live, "Whether the server is up")
    yield Route("GET", "/v2/health/ready", Category.HEALTH, _health, "Whether the server takes requests")
    yield Route("GET", "/v2/models/stats", Category.STATISTICS, handlers.all_statistics, "Statistics of all models")
    for model in ("/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"):
        yield Route("GET", model, category, handlers.model_metadata, "Model metadata")
        yield Route("GET", f"{model}/ready", Category.HEALTH, handlers.model_ready, "Whether a model is ready")
        yield Route("GET", f"{model}/config", Category.MODEL_CONFIG, handlers.model_config, "Model configuration")
        yield Route("GET", f"{model}/stats", Category.STATISTICS, handlers.model_statistics, "Statistics of a model")
        yield Route(
            "POST",
            f"{model}/infer",
            Category.INFERENCE,
            _infer,
            "Inference",
            is_inference=True,
            has_binary_tail=True,
            binary_type=VERTEX_AI_BINARY,
            takes_codings=False,
        )
    index = "/v2/repository/index"
    yield Route("POST", index, Category.MODEL_REPOSITORY, repository_index, "Models of the repository")
    yield from _shared_memory()
    for path in ("/v2/repository/models/{model_name}/load", "/v2/repository/models/{model_name}/unload"):
        yield Route("POST", path, Category.MODEL_REPOSITORY, _forbidden, "Not to be had here")


def _shared_memory() -> Iterator[Route]:
    category = Category.SHARED_MEMORY
    for kind, calls in (("systemsharedmemory", SYSTEM), ("cudasharedmemory", CUDA)):
        for region in ("", "/region/{region_name}"):
            path = f"/v2/{kind}{region}"
            yield Route("GET", f"{path}/status", category, calls.status, "Registered shared memory")
            yield Route("POST", f"{path}/unregister", category, _forbidden, "Not to be had here")
        yield Route("POST", f"/v2/{kind}/region/{{region_name}}/register", category, _forbidden, "Not to be had here")


async def _health(request: HttpRequest) -> Reply:
    reply = await handlers.server_ready(request)
    return reply if reply.status == 200 else Reply(400, JSON_CONTENT, reply.body)


async def _infer(request: HttpRequest) -> Reply:
    """As the HTTP service's; what is binary is said by the media type, or by that service's own header."""
    headers, size = request.headers, len(request.body)
    length = VERTEX_AI_BINARY.header_length(headers.get(CONTENT_TYPE), size)
    if length is None:
        length = parse_header_length(headers.get(HEADER_LENGTH), size)
    return await infer_body(request, length)


async def _forbidden(request: HttpRequest) -> Reply:
    raise Forbidden("this request is not to be had by a redirect: it would change the server")
