"""Pictures that a chat names by URLs: fetched, if the server may, before anything else is made of its messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from protocol.http.exchange import HttpRequest
from protocol.http.openai.codec.images import Picture, is_picture, names_urls, pictures_of
from protocol.http.openai.errors import FieldError
from protocol.http.openai.threads import in_thread
from protocol.outgoing.urls import UrlError

# Of one request.
MAX_FETCHED = 16

Messages = Sequence[Mapping[str, Any]]


async def with_pictures(request: HttpRequest, messages: Messages) -> Messages:
    """The messages, with what their URLs name. It counts as the request's, as its body does.

    Raises:
        FieldError: one cannot be fetched, or nothing is.
        Overloaded: too much is fetched now, or held.
    """
    if not names_urls(messages):
        return messages
    pictures = await in_thread(request, lambda: list(pictures_of(messages)))
    first = {each.url: each for each in reversed(pictures) if each.url}
    media = request.services.media
    if media is None:
        raise _refusal(pictures, "pictures are not fetched here: expected a data URL (data:image/png;base64,…)")
    if len(first) > MAX_FETCHED:
        raise _refusal(pictures, f"expected at most {MAX_FETCHED} pictures by URLs, got {len(first)}")
    request.end_turn()
    try:
        files = await media.fetch_all(first, request.fetched.take)
    except UrlError as error:
        raise _unfetched(first[error.url], str(error)) from None
    fetched = await trio.to_thread.run_sync(lambda: {url: b64encode(file).decode() for url, file in files.items()})
    found = iter(Picture(each.path, each.base64 or fetched[each.url]) for each in pictures)
    return [_replaced(message, found) for message in messages]


def _replaced(message: Mapping[str, Any], found: Any) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [next(found) if is_picture(part) else part for part in content]}


def _refusal(pictures: Sequence[Picture], text: str) -> FieldError:
    return _unfetched(next(each for each in pictures if each.url), text)


def _unfetched(picture: Picture, text: str) -> FieldError:
    shown = picture.url if len(picture.url) <= 80 else f"{picture.url[:80]}…"
    return FieldError(f"'{picture.path}': '{shown}' cannot be fetched: {text}", picture.path, "unsupported_parameter")
