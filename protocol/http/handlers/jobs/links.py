"""Links to results: made by who may read a result, and used by whoever has them, without a key."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import msgspec

from protocol.errors import Forbidden, InvalidArgument
from protocol.http.codec.json_text import JsonReader
from protocol.http.codec.query import read_query
from protocol.http.exchange import HttpRequest
from protocol.http.handlers.jobs.call import jobs_of
from protocol.http.handlers.jobs.results import result_of
from protocol.http.reply import Reply, json_reply
from protocol.jobs.links import MOST_SECONDS, ResultLink

DEFAULT_SECONDS = 3600


class LinkBody(msgspec.Struct):
    """What a link is asked for."""

    expires_in: Annotated[int, msgspec.Meta(ge=1, le=MOST_SECONDS)] = DEFAULT_SECONDS
    item: Annotated[int, msgspec.Meta(ge=0)] | None = None


_LINK_READER = JsonReader(LinkBody)


async def create_link(request: HttpRequest) -> Reply:
    """A link to the result of a job, or of one of its items; the job need not have ended yet."""
    jobs, job_id = jobs_of(request), request.path_parameters["job_id"]
    wanted = _LINK_READER.read(request.body) if request.body else LinkBody()
    job = await jobs.find(request.caller, job_id)
    if wanted.item is not None and wanted.item >= job.counts.total:
        raise InvalidArgument(f"'item': expected a number from 0 to {job.counts.total - 1}, got {wanted.item}")
    link = ResultLink(job_id, wanted.item, int(jobs.now()) + wanted.expires_in)
    item = {} if link.item is None else {"item": link.item}
    query = urlencode({**item, "expires": link.expires, "signature": await jobs.sign(link)})
    return json_reply({"url": f"/v2/jobs/{job_id}/result/linked?{query}", "expires_at": link.expires})


async def linked_result(request: HttpRequest) -> Reply | None:
    """The result that a link leads to.

    Raises:
        Forbidden: it is none of this server's.
        LinkExpired: it was one.
        NotFound: its job has been removed.
    """
    query = read_query(request.query)
    item = _number(query["item"]) if "item" in query else None
    link = ResultLink(request.path_parameters["job_id"], item, _number(query.get("expires", "")))
    job = await jobs_of(request).find_linked(link, query.get("signature", ""))
    return await result_of(request, job, link.item)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise Forbidden("this link to a result is not valid: it must be used as it was given")
    return int(text)
