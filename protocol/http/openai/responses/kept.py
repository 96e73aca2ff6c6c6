"""Handlers of `/v1/responses/{id}`: what is kept of a response, for the caller that it belongs to."""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from protocol.errors import NotFound
from protocol.http.exchange import HttpRequest
from protocol.http.openai.codec.reading import read_query
from protocol.http.openai.errors import FieldError
from protocol.http.openai.responses.background import follow
from protocol.http.openai.streams.event_stream import StreamForm
from protocol.http.openai.streams.streaming import stream_events
from protocol.http.openai.threads import LARGE_ABOVE
from protocol.http.reply import JSON_CONTENT, Reply, json_reply
from protocol.responses.store import KeptResponse

_MOST_ITEMS = 100


async def retrieve(request: HttpRequest) -> Reply | None:
    """The response, or with `stream=true` its events after `starting_after`, and those that come."""
    kept = _kept(request)
    query = read_query(request.query)
    if query.get("stream", "false") != "true":
        return Reply(200, JSON_CONTENT, kept.answer)
    log = kept.log
    if log is None:
        raise FieldError("'stream': only events of responses in the background that are streamed are kept", "stream")
    after = _number(query, "starting_after", -1, -1)
    await stream_events(request, tuple, lambda events: follow(log, after, events), StreamForm(end=b""))
    return None


async def delete(request: HttpRequest) -> Reply:
    """One that runs in the background is cancelled."""
    kept = _kept(request)
    await request.services.responses.remove(kept)
    return json_reply({"id": kept.id, "object": "response", "deleted": True})


async def cancel(request: HttpRequest) -> Reply:
    """The response as it is then; one that has ended stays as it is."""
    kept = _kept(request)
    if not kept.is_background:
        raise FieldError("Cannot cancel a synchronous response: only those in the background.", "response_id")
    await request.services.responses.cancel(kept)
    return Reply(200, JSON_CONTENT, kept.answer)


async def input_items(request: HttpRequest) -> Reply:
    """The items that it was made from, the last ones first unless `order=asc`."""
    kept = _kept(request)
    query = read_query(request.query)
    limit = _number(query, "limit", 20, 1)
    if limit > _MOST_ITEMS:
        raise FieldError(f"'limit': expected at most {_MOST_ITEMS}, got {limit}", "limit")
    if query.get("order", "desc") not in ("asc", "desc"):
        raise FieldError(f"'order': expected 'asc' or 'desc', got '{query['order']:.40}'", "order")

    def list_items() -> dict[str, Any]:
        return _listed(msgspec.json.decode(kept.items), query.get("order"), query.get("after"), limit)

    is_long = len(kept.items) > LARGE_ABOVE
    return json_reply(await trio.to_thread.run_sync(list_items) if is_long else list_items())


def _listed(items: list[dict[str, Any]], order: str | None, after: str | None, limit: int) -> dict[str, Any]:
    if order != "asc":
        items.reverse()
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise FieldError(f"'after': there is no item '{after:.256}'", "after")
        items = items[place + 1 :]
    found = items[:limit]
    return {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": len(items) > limit,
    }


def _kept(request: HttpRequest) -> KeptResponse:
    response_id = request.path_parameters["response_id"]
    kept = request.services.responses.find(request.caller, response_id)
    if kept is None:
        raise NotFound(f"Response with id '{response_id:.256}' not found.")
    return kept


def _number(query: dict[str, str], name: str, default: int, minimum: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(text) > 18 or int(text) < minimum:
        raise FieldError(f"'{name}': expected a number from {minimum} on, got '{text:.40}'", name)
    return int(text)
