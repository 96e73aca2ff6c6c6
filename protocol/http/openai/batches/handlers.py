"""Handlers of batches: they are made, looked at and cancelled by the key that made them."""

from __future__ import annotations

from protocol.errors import NotFound
from protocol.http.codec.jobs import fingerprint, idempotency_key
from protocol.http.exchange import HttpRequest
from protocol.http.openai.batches.call import batches_of, list_reply
from protocol.http.openai.batches.codec import BATCH_READER, batch_json, page_of
from protocol.http.openai.call import read_body
from protocol.http.openai.errors import FieldError
from protocol.http.reply import Reply, json_reply
from protocol.jobs.batches.files import INPUT
from protocol.jobs.batches.service import NewBatch


async def create_batch(request: HttpRequest) -> Reply:
    """What is wrong with its lines is told by the batch, once they are read."""
    batches, owner = batches_of(request), request.caller
    body = await read_body(request, BATCH_READER)
    body.check()
    output_seconds, webhook = body.output_seconds, body.checked_webhook()
    key = idempotency_key(request.headers)
    try:
        file = await batches.find_file(owner, body.input_file_id)
    except NotFound as error:
        raise FieldError(f"'input_file_id': {error.message}", "input_file_id", "invalid_file") from None
    if file.purpose != INPUT:
        raise FieldError(f"'input_file_id': expected a file of purpose '{INPUT}'", "input_file_id")
    made = fingerprint("batch", None, request.body) if key else b""
    batch = await batches.create(
        NewBatch(owner, body.endpoint, file, body.metadata or {}, output_seconds, key, made, webhook)
    )
    if request.charge is not None:
        request.charge.goes_on = True
    return json_reply(batch_json(batch))


async def list_batches(request: HttpRequest) -> Reply:
    """A page of the caller's batches, the newest first."""
    batches = batches_of(request)
    page = page_of(request.query)
    found = await batches.batches(request.caller, page.after, page.limit + 1)
    return await list_reply(found, page.limit, batch_json)


async def retrieve_batch(request: HttpRequest) -> Reply:
    return json_reply(batch_json(await batches_of(request).find(request.caller, _id(request))))


async def cancel_batch(request: HttpRequest) -> Reply:
    """The batch as it is then; one that has ended stays as it is."""
    return json_reply(batch_json(await batches_of(request).cancel(request.caller, _id(request))))


def _id(request: HttpRequest) -> str:
    return request.path_parameters["batch_id"]
