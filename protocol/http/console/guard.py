"""What every handler of the console's data has around it: the console must be there, the host this server's, and
nothing is kept by a cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import TypeAlias

import msgspec

from protocol.console.interface import Console
from protocol.errors import Forbidden, InvalidArgument, NotFound, Unsupported
from protocol.http.codec.json_pieces import json_list_reply
from protocol.http.console.host_check import is_own_host
from protocol.http.exchange import Handler, HttpRequest, header_text
from protocol.http.reply import JSON_CONTENT, Headers, Reply
from protocol.sync.sliced import run_sliced

NO_STORE: Headers = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

ConsoleHandler: TypeAlias = Callable[[HttpRequest, Console], Awaitable[object]]


def console_of(request: HttpRequest) -> Console:
    """Raises NotFound, Forbidden."""
    console = request.services.console
    if console is None:
        raise NotFound("Not Found")
    host = header_text(request.headers, "host") or ""
    if request.services.access.keys.current is None and not is_own_host(host, console.names):
        raise Forbidden(
            f"Host '{host[:100]}' is not known to be this server's; expected an address, localhost, or a name that "
            f"--console-host gives"
        )
    return console


def json_of(handler: ConsoleHandler) -> Handler:
    """A handler that replies with the JSON of what the given one returns. Lists are written in slices: log lines and
    errors are long."""

    @wraps(handler)
    async def run(request: HttpRequest) -> Reply:
        answer = await handler(request, console_of(request))
        if not isinstance(answer, list):
            return Reply(200, JSON_CONTENT + NO_STORE, msgspec.json.encode(answer))
        reply = await run_sliced(json_list_reply(answer, request.headers.get(b"accept-encoding")))
        return Reply(reply.status, (*reply.headers, *NO_STORE), reply.body)

    return run


def require_json(request: HttpRequest) -> None:
    """A page of another site cannot send this type without being asked for leave first (CORS).

    Raises:
        Unsupported: the body has another type.
    """
    given = (header_text(request.headers, "content-type") or "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise Unsupported(f"content type '{given[:60]}' is not taken here, expected 'application/json'")


def number_in(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number of a path or query. Raises InvalidArgument."""
    text = fields.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidArgument(f"Unable to parse '{name}': expected a whole number, got '{text[:40]}'")
    return int(text)
