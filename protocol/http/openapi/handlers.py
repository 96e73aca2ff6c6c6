"""Handlers of `/v2/docs`: the page, its assets, and the document, generated for each request.

Every answer carries an entity tag, and clients ask anew each time: models come and go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import trio

from protocol.core import InferenceCore
from protocol.errors import NotFound, ServerError
from protocol.http.codec.json_pieces import compressed, json_pieces
from protocol.http.exchange import Handler, HttpRequest
from protocol.http.openapi.document import DescribedRoute, build_document
from protocol.http.openapi.models import JsonObject, ModelDescription
from protocol.http.openapi.schemas import component_schemas
from protocol.http.reply import JSON_CONTENT, Headers, Reply
from protocol.http.static_files import HTML, PAGE_PARTS, SCRIPT, STYLE, entity_tag, file_reply, tagged_reply
from protocol.sync.sliced import Sliced, run_sliced

_FILES: Mapping[str, str] = {
    "operation.js": SCRIPT,
    "page.css": STYLE,
    "page.js": SCRIPT,
    "schema.js": SCRIPT,
    "text.js": SCRIPT,
}
# By the name in the path: the package whose folder `assets` has the file, and what it is.
ASSETS: Mapping[str, tuple[str, str]] = {
    **{name: (__package__, content_type) for name, content_type in _FILES.items()},
    **PAGE_PARTS,
}


async def page(request: HttpRequest) -> Reply:
    """Needs no right: the document does."""
    return await file_reply(request, __package__, "index.html", HTML)


async def asset(request: HttpRequest) -> Reply:
    """Raises:
    NotFound: the page has no such file.
    """
    found = ASSETS.get(request.path_parameters["asset_name"])
    if found is None:
        raise NotFound("Not Found")
    package, content_type = found
    return await file_reply(request, package, request.path_parameters["asset_name"], content_type)


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
        return tagged_reply(request, (*JSON_CONTENT, *headers), body, tag)

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
    return body, headers, entity_tag(digest.hexdigest())


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
