"""Handler of `/`: an index of this server's endpoints, as an HTML page for browsers and as JSON for others."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from protocol.http.exchange import HttpRequest
from protocol.http.reply import JSON_CONTENT, Headers, Reply

# What is worth knowing first; the whole is in the documentation.
PATHS: Mapping[str, str] = {
    "live": "GET /v2/health/live",
    "ready": "GET /v2/health/ready",
    "server": "GET /v2",
    "models": "POST /v2/repository/index",
    "model": "GET /v2/models/{model_name}",
    "config": "GET /v2/models/{model_name}/config",
    "infer": "POST /v2/models/{model_name}/infer",
    "generate": "POST /v2/models/{model_name}/generate",
    "statistics": "GET /v2/models/stats",
    "documentation": "GET /v2/docs",
    "openapi": "GET /v2/docs/openapi.json",
}
METRICS_PATH = "/metrics"
CONSOLE: Mapping[str, str] = {"console": "GET /v2/console"}

_VARY: Headers = ((b"vary", b"accept"),)
_PAGE_HEADERS: Headers = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    *_VARY,
)


async def overview(request: HttpRequest) -> Reply:
    """The page where the client names HTML as what it takes."""
    metadata = request.core.server_metadata()
    ports = {word: port for word, (_, port) in request.services.addresses.items() if word != "http"}
    paths = {**PATHS, **CONSOLE} if request.settings.console else PATHS
    if b"text/html" in request.headers.get(b"accept", b"").lower():
        page = _page(f"{metadata.name} {metadata.version}", paths, ports)
        return Reply(headers=_PAGE_HEADERS, body=page.encode())
    answer = {"name": metadata.name, "version": metadata.version, "paths": paths, **_services(ports)}
    return Reply(headers=JSON_CONTENT + _VARY, body=msgspec.json.encode(answer))


def _services(ports: Mapping[str, int]) -> dict[str, Mapping[str, object]]:
    """The other services, on the same host."""
    made: dict[str, Mapping[str, object]] = {word: {"port": port} for word, port in ports.items()}
    if "metrics" in made:
        made["metrics"] = {**made["metrics"], "path": METRICS_PATH}
    return made


def _page(title: str, paths: Mapping[str, str], ports: Mapping[str, int]) -> str:
    from html import escape  # brings all of HTML's entities, half a megabyte

    rows = [f"<tr><td>{word}<td>{_linked(operation)}" for word, operation in paths.items()]
    rows += [
        f"<tr><td>{escape(word)}<td>port {port}" + (f", GET {METRICS_PATH}" if word == "metrics" else "")
        for word, port in ports.items()
    ]
    name = escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><h1>{name}</h1>'
        f"<table>{''.join(rows)}</table></html>\n"
    )


def _linked(operation: str) -> str:
    """A link where a browser can follow it as it is, relative, for proxies that add a prefix."""
    method, _, path = operation.partition(" ")
    return f'GET <a href="{path[1:]}">{path}</a>' if method == "GET" and "{" not in path else operation
