"""Results of jobs: that of one request as inference would have answered it, those of a list as JSON lines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import trio

from protocol.errors import KINDS, DeadlineExceeded, InvalidArgument, ServerError
from protocol.http.codec.generate import encode_generate_response
from protocol.http.codec.infer import OutputEncoding
from protocol.http.codec.job_rows import answer_members, error_json, response_json
from protocol.http.codec.query import read_query
from protocol.http.errors import Conflict
from protocol.http.exchange import JSON_IN_THREAD_ABOVE, HttpRequest
from protocol.http.handlers.infer import encode
from protocol.http.handlers.jobs.call import jobs_of, preferences_of
from protocol.http.reply import JSON_CONTENT, Headers, Reply, json_reply
from protocol.jobs.job import ItemError, Job
from protocol.jobs.job_json import job_json
from protocol.jobs.payload import decode_responses
from protocol.jobs.result_form import ResultForm
from protocol.jobs.source import JobSource
from protocol.jobs.states import JobState
from protocol.jobs.store import Item
from protocol.messages import InferenceResponse

JSON_LINES: Headers = ((b"content-type", b"application/x-ndjson"),)
_ITEMS_AT_ONCE = 256


async def job_result(request: HttpRequest) -> Reply | None:
    """The result of a job that has ended; with `item` in the query that of one of its items.

    Raises:
        Conflict: it has not ended.
        ServerError: it has failed with this.
    """
    jobs, owner, job_id = jobs_of(request), request.caller, request.path_parameters["job_id"]
    wait = preferences_of(request).wait
    job = await (jobs.wait(owner, job_id, wait) if wait else jobs.find(owner, job_id))
    place = None if job.source is not None else read_query(request.query).get("item")
    return await result_of(request, job, None if place is None else _index(place, job))


async def result_of(request: HttpRequest, job: Job, item: int | None) -> Reply | None:
    """That of a job that the client may read; None where it has been sent. Raises as `job_result`."""
    if job.source is not None:
        return _source_reply(job, job.source)
    if item is not None:
        return await _item_reply(request, job, item)
    if not job.state.is_ended:
        raise Conflict(f"job '{job.id}' is {job.state}: its result is not there yet")
    (first,) = await jobs_of(request).items(job.id, 0, 1)
    if not ResultForm.decode(first.form).is_list:
        return await result_reply(request, job)
    await _send_lines(request, job)
    return None


async def result_reply(request: HttpRequest, job: Job) -> Reply:
    """That of a job of one request, which has ended."""
    return await _item_reply(request, job, 0)


def _source_reply(job: Job, source: JobSource) -> Reply:
    """Where the results of a job are that has written them to files. Raises Conflict: it has not ended."""
    if not job.state.is_ended:
        raise Conflict(f"job '{job.id}' is {job.state}: its results so far are in {source.output.url}")
    return json_reply({"output": job_json(job)["output"]})


def _index(text: str, job: Job) -> int:
    total = job.counts.total
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) >= total:
        raise InvalidArgument(f"'item': expected a number from 0 to {total - 1}, got '{text:.40}'")
    return int(text)


async def _item_reply(request: HttpRequest, job: Job, index: int) -> Reply:
    (item,) = await jobs_of(request).items(job.id, index, 1, results=True)
    if item.state is not JobState.SUCCEEDED:
        raise _error_of(item, job)
    assert item.result is not None
    responses, form = decode_responses(item.result), ResultForm.decode(item.form)
    if len(responses) != 1:
        lines = await _in_thread_if_long(
            partial(_response_lines, responses, is_generate=form.is_generate), len(item.result)
        )
        return Reply(200, JSON_LINES, lines)
    (response,) = responses
    if form.is_generate:
        body = await _in_thread_if_long(partial(encode_generate_response, response), len(item.result))
        return Reply(200, JSON_CONTENT, body)
    return await encode(
        response, OutputEncoding(form.default_binary, form.binary), request.headers.get(b"accept-encoding")
    )


def _error_of(item: Item, job: Job) -> ServerError:
    """Why there is no result."""
    if item.error is not None:
        return KINDS.get(item.error.kind, ServerError)(item.error.message)
    if item.state is JobState.EXPIRED:
        return DeadlineExceeded(f"job '{job.id}' has expired before it could end")
    return Conflict(f"job '{job.id}': item {item.index} is {item.state} and has no result")


async def _send_lines(request: HttpRequest, job: Job) -> None:
    """One line for each item, in their order, as the store gives them."""
    jobs, writer = jobs_of(request), request.writer
    await writer.start(200, JSON_LINES)
    index = 0
    while items := await jobs.items(job.id, index, _ITEMS_AT_ONCE, results=True):
        await writer.send(await trio.to_thread.run_sync(_item_lines, items))
        index = items[-1].index + 1
    await writer.end()


def _item_lines(items: Sequence[Item]) -> bytes:
    return b"".join([msgspec.json.encode(_item_line(item)) + b"\n" for item in items])


def _item_line(item: Item) -> dict[str, Any]:
    line: dict[str, Any] = {"index": item.index, "state": item.state, "model_name": item.model}
    if item.custom_id:
        line["custom_id"] = item.custom_id
    try:
        if item.result is not None:
            line.update(answer_members(decode_responses(item.result)))
    except ServerError as error:
        line["error"] = error_json(ItemError(error.kind, error.message))
    if item.error is not None:
        line["error"] = error_json(item.error)
    return line


def _response_lines(responses: Sequence[InferenceResponse], *, is_generate: bool) -> bytes:
    return b"".join([bytes(response_json(each, is_generate=is_generate)) + b"\n" for each in responses])


async def _in_thread_if_long(call: partial[bytes], size: int) -> bytes:
    return await trio.to_thread.run_sync(call) if size > JSON_IN_THREAD_ABOVE else call()
