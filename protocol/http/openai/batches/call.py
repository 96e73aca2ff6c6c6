"""What the handlers of files and batches have in common: the server's batches, whose they are, and lists of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import trio

from protocol.http.exchange import HttpRequest
from protocol.http.openai.batches.codec import list_json
from protocol.http.openai.errors import NotServed
from protocol.http.reply import Reply, json_reply
from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.batches.service import Batches

T = TypeVar("T", Batch, StoredFile)

_WRITTEN_AT_ONCE = 16


def batches_of(request: HttpRequest) -> Batches:
    """Raises NotServed where the server keeps none, Unavailable where it keeps none yet."""
    request.services.keeping.check()
    batches = request.services.batches
    if batches is None:
        raise NotServed("files and batches need a place to be kept: start the server with --jobs-store=<folder>")
    return batches


async def list_reply(found: Sequence[T], limit: int, members: Callable[[T], dict[str, Any]]) -> Reply:
    """A page of a list, written a little at a time; `found` has one more than the limit where there are more."""
    data: list[msgspec.Raw] = []
    page = found[:limit]
    for first in range(0, len(page), _WRITTEN_AT_ONCE):
        data += [msgspec.Raw(msgspec.json.encode(members(each))) for each in page[first : first + _WRITTEN_AT_ONCE]]
        await trio.lowlevel.checkpoint()
    return json_reply(list_json(data, [each.id for each in page], has_more=len(found) > limit))
