"""What the handlers of files and batches have in common: the server's batches, and whose they are."""

from __future__ import annotations

from protocol.http.exchange import HttpRequest, header_text
from protocol.http.openai.errors import NotServed
from protocol.jobs.batches.service import Batches


def batches_of(request: HttpRequest) -> Batches:
    """Raises NotServed where the server keeps none."""
    batches = request.services.batches
    if batches is None:
        raise NotServed("files and batches need a place to be kept: start the server with --jobs-store=<folder>")
    return batches


def owner_of(request: HttpRequest) -> str:
    """Whom the files and batches of this caller belong to."""
    return request.services.access.caller(lambda name: header_text(request.headers, name))
