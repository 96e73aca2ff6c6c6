"""Route table: finds the endpoint of a path, and the values of the path's parameters.

Source: reference section "Transport and routing": paths match whole, without a trailing slash, and a literal part
goes before a named one (`/v2/models/stats` is never a model's metadata).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from protocol.access.categories import Category
from protocol.errors import NotFound
from protocol.http.errors import ErrorForm, MethodNotAllowed, error_reply
from protocol.http.exchange import header_text
from protocol.http.route import Route

# Under these prefixes of paths the errors are so, and the request's id comes in this header too, also where there is
# no route; the first that fits counts.
Forms: TypeAlias = tuple[tuple[bytes, ErrorForm, bytes], ...]
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

    def __init__(self, routes: Sequence[Route], forms: Forms = ()) -> None:
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
