"""The table of everything that the main HTTP service answers, and the search in it.

Source: reference section "Transport and routing": paths match whole, without a trailing slash, and a literal part
goes before a named one (`/v2/models/stats` is never a model's metadata).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from protocol.errors import NotFound
from protocol.http import handlers, repository_handlers
from protocol.http.errors import MethodNotAllowed
from protocol.http.exchange import Handler
from protocol.http.infer_handler import infer


@dataclass(frozen=True, slots=True)
class Route:
    """One operation.

    Attributes:
        path: its pattern; `{name}` stands for one part of any text, `{model_version}` for digits only.
        summary: one line for people.
        has_binary_tail: whether a body may hold binary tensors behind its JSON, and so exceed `max_input_size`.
        cancel_on_disconnect: whether the handler is cancelled when the client leaves.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    has_binary_tail: bool = False
    cancel_on_disconnect: bool = False


def _routes() -> Iterator[Route]:
    yield Route("GET", "/v2", handlers.server_metadata, "Server metadata")
    yield Route("GET", "/v2/health/live", handlers.server_live, "Whether the server is up")
    yield Route("GET", "/v2/health/ready", handlers.server_ready, "Whether the server takes inference requests")
    yield Route("GET", "/v2/models/stats", handlers.all_statistics, "Statistics of all ready models")
    for model in ("/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"):
        yield Route("GET", model, handlers.model_metadata, "Model metadata")
        yield Route("GET", f"{model}/ready", handlers.model_ready, "Whether a model is ready")
        yield Route("GET", f"{model}/config", handlers.model_config, "Model configuration")
        yield Route("GET", f"{model}/stats", handlers.model_statistics, "Statistics of a model")
        yield Route("POST", f"{model}/infer", infer, "Inference", has_binary_tail=True, cancel_on_disconnect=True)
        for name in ("generate", "generate_stream"):
            yield Route("POST", f"{model}/{name}", handlers.not_supported_yet(f"'{name}'"), "Generate extension")
    for repository in ("/v2/repository", "/v2/repository/{repository_name}"):
        yield Route("POST", f"{repository}/index", repository_handlers.repository_index, "Models of the repository")
        control = f"{repository}/models/{{model_name}}"
        yield Route("POST", f"{control}/load", repository_handlers.load_model, "Load or reload a model")
        yield Route("POST", f"{control}/unload", repository_handlers.unload_model, "Unload a model")
    yield from _routes_to_come()


def _routes_to_come() -> Iterator[Route]:
    """Paths of the protocol that are known and answered with 501."""
    trace = handlers.not_supported_yet("the trace extension")
    logging = handlers.not_supported_yet("the logging extension")
    for method in ("GET", "POST"):
        yield Route(method, "/v2/trace/setting", trace, "Global trace settings")
        yield Route(method, "/v2/models/{model_name}/trace/setting", trace, "Trace settings of a model")
        yield Route(method, "/v2/logging", logging, "Log settings")
    for kind, words in (("systemsharedmemory", "system shared memory"), ("cudasharedmemory", "CUDA shared memory")):
        refuse = handlers.not_supported_yet(words)
        for region in ("", "/region/{region_name}"):
            yield Route("GET", f"/v2/{kind}{region}/status", refuse, f"Registered {words}")
            yield Route("POST", f"/v2/{kind}{region}/unregister", refuse, f"Unregister {words}")
        yield Route("POST", f"/v2/{kind}/region/{{region_name}}/register", refuse, f"Register {words}")


ROUTES: tuple[Route, ...] = tuple(_routes())


@dataclass(slots=True)
class _Node:
    """One part of a path: what may follow it, and the routes that end here by method."""

    literal: dict[str, _Node] = field(default_factory=dict)
    named: dict[str, _Node] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)


class RouteTable:
    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.path.split("/")[1:]:
                children = node.named if part.startswith("{") else node.literal
                node = children.setdefault(part.strip("{}"), _Node())
            node.routes[route.method] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """The route of a request and the named parts of its path. HEAD goes where GET goes.

        Raises:
            NotFound: no such path. MethodNotAllowed: not with this method.
        """
        parts = [unquote_to_bytes(part).decode("utf-8", "replace") for part in raw_path.split(b"/")[1:]]
        parameters: dict[str, str] = {}
        node = _search(self._root, parts, 0, parameters)
        if node is None:
            raise NotFound("Not Found")
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = (*node.routes, "HEAD") if "GET" in node.routes else tuple(node.routes)
            raise MethodNotAllowed(allowed)
        return route, parameters


def _search(node: _Node, parts: list[str], index: int, parameters: dict[str, str]) -> _Node | None:
    """Depth first, literal parts before named ones; the depth is that of the deepest route."""
    if index == len(parts):
        return node if node.routes else None
    part = parts[index]
    if (child := node.literal.get(part)) and (found := _search(child, parts, index + 1, parameters)):
        return found
    for name, child in node.named.items():
        is_fit = part.isascii() and part.isdigit() if name == "model_version" else part != ""
        if is_fit and (found := _search(child, parts, index + 1, parameters)):
            parameters[name] = part
            return found
    return None
