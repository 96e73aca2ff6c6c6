"""Handlers of files that are kept; each caller sees its own."""

from __future__ import annotations

from urllib.parse import quote

from protocol.errors import NotFound
from protocol.http.exchange import HttpRequest
from protocol.http.openai.batches.call import batches_of, list_reply
from protocol.http.openai.batches.codec import FILES_AT_ONCE, MAX_FILES_PAGE, file_json, page_of
from protocol.http.reply import Reply, json_reply

_PIECE_SIZE = 256 << 10


async def list_files(request: HttpRequest) -> Reply:
    """A page of the caller's files, the newest first."""
    batches = batches_of(request)
    page = page_of(request.query, MAX_FILES_PAGE, MAX_FILES_PAGE)
    limit = min(page.limit, FILES_AT_ONCE)
    found = await batches.files(request.caller, page.purpose, page.after, limit + 1, ascending=page.ascending)
    return await list_reply(found, limit, file_json)


async def retrieve_file(request: HttpRequest) -> Reply:
    return json_reply(file_json(await batches_of(request).find_file(request.caller, _id(request))))


async def delete_file(request: HttpRequest) -> Reply:
    await batches_of(request).remove_file(request.caller, _id(request))
    return json_reply({"id": _id(request), "object": "file", "deleted": True})


async def file_content(request: HttpRequest) -> None:
    """As it was uploaded, or written. One that is removed meanwhile is cut off."""
    batches, writer = batches_of(request), request.writer
    file = await batches.find_file(request.caller, _id(request))
    named = b"attachment; filename*=UTF-8''" + quote(file.name).encode()
    await writer.start(200, ((b"content-type", b"application/octet-stream"), (b"content-disposition", named)))
    start = 0
    try:
        while data := await batches.read_file(file.payload, start, _PIECE_SIZE):
            await writer.send(data)
            start += len(data)
    except NotFound as error:  # too late for a status: a body without its end tells the client
        request.failure = error
        return
    await writer.end()


def _id(request: HttpRequest) -> str:
    return request.path_parameters["file_id"]
