"""Handlers of `/v2/docs`: the page, its assets, and the document, generated for each request.

The page runs under a policy that lets it load and call nothing but this server. Every answer carries an entity tag, and
clients ask anew each time: models come and go.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources

import msgspec
import trio

from protocol.core import InferenceCore
from protocol.errors import NotFound, ServerError
from protocol.http.codec.compression import choose_encoding
from protocol.http.codec.json_pieces import compressed, json_pieces
from protocol.http.exchange import Handler, HttpRequest
from protocol.http.openapi.document import DescribedRoute, build_document
from protocol.http.openapi.models import JsonObject, ModelDescription
from protocol.http.openapi.schemas import component_schemas
from protocol.http.reply import JSON_CONTENT, Headers, Reply
from protocol.sync.sliced import Sliced, run_sliced

_HTML = "text/html; charset=utf-8"
_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"

# By the name in the path: where the file is, and what. Those of the viewer are kept compressed.
ASSETS: Mapping[str, tuple[str, str]] = {
    "page.js": ("page.js", _SCRIPT),
    "page.css": ("page.css", _STYLE),
    "swagger-ui-bundle.js": ("swagger-ui-bundle.js.gz", _SCRIPT),
    "swagger-ui.css": ("swagger-ui.css.gz", _STYLE),
}

# `data:` is for the icons in the viewer's style sheet. Nothing is inline: neither scripts nor styles.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

_HEADERS: Headers = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
_VARY: Headers = ((b"vary", b"accept-encoding"),)


async def page(request: HttpRequest) -> Reply:
    return await _answer(request, "index.html", _HTML)


async def asset(request: HttpRequest) -> Reply:
    """Raises:
    NotFound: the page has no such file.
    """
    found = ASSETS.get(request.path_parameters["asset_name"])
    if found is None:
        raise NotFound("Not Found")
    return await _answer(request, *found)


def document_of(routes: Callable[[HttpRequest], Sequence[DescribedRoute]]) -> Handler:
    """The handler that serves the document of these routes; they are asked for when it runs, being its own as well."""

    async def document(request: HttpRequest) -> Reply:
        core = request.core
        work = build_document(
            routes(request),
            core.server_metadata(),
            describe_models(core),
            asset_names=tuple(ASSETS),
            needs_key=not request.services.access.is_open,
        )
        await trio.to_thread.run_sync(component_schemas)  # which are kept from then on
        # In slices: some hundred models are megabytes of text.
        body, headers, tag = await run_sliced(_written(work, request.headers.get(b"accept-encoding")))
        return _reply(request, (*JSON_CONTENT, *headers), body, tag)

    return document


def _written(work: Sliced[JsonObject], accept_encoding: bytes | None) -> Sliced[tuple[bytes, Headers, bytes]]:
    """The text of a document, its headers and its entity tag."""
    document = yield from work
    parts: list[bytes] = []
    start = b"{"
    for member in list(document):
        value = document.pop(member)  # to free all of it at once would take longer than a slice
        parts.append(b'%s"%s":' % (start, member.encode()))
        start = b","
        for part in _pieces(value):
            parts.append(part)
            yield
    parts.append(b"}")
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
        yield
    body, headers = yield from compressed(parts, accept_encoding)
    return body, headers, _entity_tag(digest.hexdigest())


def _pieces(value: object) -> Iterator[bytes]:
    """A value as JSON, an object or a list member by member, each of which is let go."""
    if isinstance(value, list):
        value.reverse()
        yield from json_pieces(value.pop() for _ in range(len(value)))
    elif isinstance(value, dict):
        start = b"{"
        for key in list(value):
            yield start + msgspec.json.encode(key) + b":" + msgspec.json.encode(value.pop(key))
            start = b","
        yield b"{}" if start == b"{" else b"}"
    else:
        yield msgspec.json.encode(value)


def describe_models(core: InferenceCore) -> Iterator[ModelDescription]:
    """The models that are ready, by name.

    Raises:
        Unavailable: the server is stopping.
    """
    seen: set[str] = set()
    for name in (entry.name for entry in core.each_statistics()):
        if name in seen:
            continue
        seen.add(name)
        try:
            metadata, config = core.model_metadata(name), core.model_config(name)
            yield ModelDescription.of(metadata, config, is_decoupled=core.is_decoupled(name))
        except ServerError:
            continue  # it is not ready any more


async def _answer(request: HttpRequest, file: str, content_type: str) -> Reply:
    """A packaged file, as it is kept where the client can inflate it."""
    stored = await trio.to_thread.run_sync(_read, file)
    headers: Headers = ((b"content-type", content_type.encode()),)
    body = stored
    if file.endswith(".gz"):
        if choose_encoding(request.headers.get(b"accept-encoding")) == "gzip":
            headers = (*headers, (b"content-encoding", b"gzip"))
        else:
            body = await trio.to_thread.run_sync(gzip.decompress, stored)
    return _reply(request, (*headers, *_VARY), body, _entity_tag(hashlib.sha256(stored).hexdigest()))


def _read(file: str) -> bytes:
    return resources.files(__package__).joinpath("assets", file).read_bytes()


def _reply(request: HttpRequest, headers: Headers, body: bytes, tag: bytes) -> Reply:
    """The body stays in a reply of status 304: it is not sent, but its length is told as for 200 (RFC 9110, 8.6)."""
    known = request.headers.get(b"if-none-match", b"")
    is_known = known.strip() == b"*" or tag in (entry.strip() for entry in known.split(b","))
    return Reply(304 if is_known else 200, (*headers, *_HEADERS, (b"etag", tag)), body)


def _entity_tag(digest: str) -> bytes:
    """Weak, as the content is the same in every coding."""
    return b'W/"%s"' % digest[:32].encode()
