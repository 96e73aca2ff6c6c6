"""Handlers of the console: its page, and its data as JSON.

Which calls a key may make is said by the categories of their routes, as everywhere; `access` says it in advance.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
import trio

from protocol.access.categories import Category
from protocol.access.keys import ANONYMOUS, KEY_NEEDED
from protocol.console.interface import Console
from protocol.errors import NotFound, ServerError, Unauthenticated, Unavailable
from protocol.http.codec.query import read_query
from protocol.http.console.guard import console_of, json_of, number_in, require_json
from protocol.http.exchange import HttpRequest, header_text
from protocol.http.reply import Reply
from protocol.http.static_files import HTML, PAGE_PARTS, SCRIPT, STYLE, file_reply

_MODULES = (
    "acts", "app", "fields", "jobs", "lists", "live", "model", "outputs", "overview", "parts", "pictures", "plots",
    "snippets", "tensors", "try",
)  # fmt: skip
# By the name in the path: the package whose folder `assets` has the file, and what it is.
FILES: Mapping[str, tuple[str, str]] = {
    **{f"{name}.js": (__package__, SCRIPT) for name in _MODULES},
    "console.css": (__package__, STYLE),
    "uPlot.min.css": (__package__, STYLE),
    "uPlot.iife.min.js": (__package__, SCRIPT),
    **PAGE_PARTS,
}


SNAPSHOT_SECONDS = 10.0


async def page(request: HttpRequest) -> Reply:
    """Needs no key: what it shows does."""
    console_of(request)
    return await file_reply(request, __package__, "index.html", HTML)


async def page_file(request: HttpRequest) -> Reply:
    """Raises:
    NotFound: the page has no such file.
    """
    console_of(request)
    name = request.path_parameters["file_name"]
    found = FILES.get(name)
    if found is None:
        raise NotFound("Not Found")
    package, content_type = found
    return await file_reply(request, package, name, content_type)


@json_of
async def access(request: HttpRequest, console: Console) -> object:
    """What the caller's key allows; why not, of the rest.

    Raises:
        Unauthenticated: there is a key, and it is none.
    """
    control = request.services.access
    headers = partial(header_text, request.headers)
    caller = control.caller(headers)
    if control.keys.current is not None and caller == ANONYMOUS and headers("authorization") is not None:
        raise Unauthenticated(KEY_NEEDED)
    allowed, refused = [], {}
    for category in Category:
        try:
            control.check(category, headers)
        except ServerError as error:
            refused[category.value] = error.message
        else:
            allowed.append(category.value)
    metadata = request.core.server_metadata()
    return {
        "server": {"name": metadata.name, "version": metadata.version},
        "needs_key": control.keys.current is not None,
        "key": caller,
        "allowed": allowed,
        "refused": refused,
        "model_control": console.control_refusal,
        "jobs": request.services.jobs is not None,
    }


@json_of
async def snapshot(request: HttpRequest, console: Console) -> object:
    """The newest one; the first in a while has no rates yet.

    Raises:
        Unavailable: the server stops, or there is none within some seconds.
    """
    tick = None
    with trio.move_on_after(SNAPSHOT_SECONDS):
        tick = await console.glance()
    if tick is None:
        raise Unavailable("there is no snapshot: the server stops, or is too busy")
    return msgspec.Raw(tick.whole)


@json_of
async def history(request: HttpRequest, console: Console) -> object:
    return console.history()


@json_of
async def version_history(request: HttpRequest, console: Console) -> object:
    return console.version_history(request.model_name, request.path_parameters["model_version"])


@json_of
async def model(request: HttpRequest, console: Console) -> object:
    return console.model(request.model_name)


@json_of
async def requests(request: HttpRequest, console: Console) -> object:
    return console.requests()


@json_of
async def cancel(request: HttpRequest, console: Console) -> object:
    require_json(request)
    return {"cancelled": console.cancel(number_in(request.path_parameters, "request_number"))}


@json_of
async def errors(request: HttpRequest, console: Console) -> object:
    return console.errors(number_in(read_query(request.query), "after", 0))


@json_of
async def log(request: HttpRequest, console: Console) -> object:
    return console.log(number_in(read_query(request.query), "after", 0))
