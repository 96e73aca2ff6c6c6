"""Handlers that make jobs: of an inference request, of a list of them, and of a request whose client prefers that.

A job is checked as far as it can be without running it, kept, and then answered with status 202: from then on it
outlives its client and the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from protocol.errors import InvalidArgument, ServerError, Unavailable
from protocol.http.codec.infer import HEADER_LENGTH, decode_infer_request, parse_header_length
from protocol.http.codec.jobs import (
    JobList,
    fingerprint,
    has_source,
    idempotency_key,
    read_job_list,
    read_listed_request,
    read_source_body,
    timeout_of,
    webhook_of,
)
from protocol.http.codec.long_jobs import read_long_listed, split_long_list
from protocol.http.codec.query import read_query
from protocol.http.exchange import JSON_IN_THREAD_ABOVE, JSON_SLICED_ABOVE, HttpRequest
from protocol.http.handlers import infer as inference_handler
from protocol.http.handlers.generate import decode as decode_generate
from protocol.http.handlers.generate import generate
from protocol.http.handlers.jobs.call import applied, job_reply, jobs_of, location, preferences_of
from protocol.http.handlers.jobs.results import result_reply
from protocol.http.reply import Reply
from protocol.jobs.admission import check_model, refuse_placement, refuse_sequence
from protocol.jobs.job import Job, new_job_id
from protocol.jobs.payload import encode_request
from protocol.jobs.result_form import ResultForm
from protocol.jobs.source import DataFormat, JobSource
from protocol.jobs.store import NewItem, NewJob
from protocol.jobs.webhook import Webhook
from protocol.messages import LATEST_VERSION, Buffer, InferenceRequest
from protocol.quotas.quota import Unit
from protocol.sync.sliced import Sliced, in_one_go, run_sliced

T = TypeVar("T")

# A request of a list that has more bytes is read in slices.
_LONG_ABOVE = 1 << 15


async def infer_or_job(request: HttpRequest) -> Reply | None:
    """Inference; `Prefer: respond-async` makes a job of it, where the server takes jobs."""
    if not _is_deferred(request):
        return await inference_handler.infer(request)
    return await _deferred(request, await _infer_item(request))


async def generate_or_job(request: HttpRequest) -> Reply | None:
    """As `generate`; `Prefer: respond-async` makes a job of it, where the server takes jobs."""
    if not _is_deferred(request):
        return await generate(request)
    inference = await decode_generate(request)
    _check(request, inference)
    item = NewItem(inference.model_name, encode_request(inference), form=ResultForm(is_generate=True).encode())
    return await _deferred(request, item)


async def create_of_model(request: HttpRequest) -> Reply:
    """A job of one inference request to the model in the path."""
    jobs_of(request)
    query = read_query(request.query)
    timeout, webhook = timeout_of(query), webhook_of(query)
    item = await _infer_item(request)
    making = _Making([item], request.model_name, request.model_version, timeout, webhook=webhook)
    return await _created(request, making)


async def create_of_list(request: HttpRequest) -> Reply:
    """A job of a list of inference requests, each of which names its model; or of the rows of files."""
    jobs_of(request)
    if has_source(request.body):
        return await _created(request, _read_source(request))
    making = await _read_list(request.body, request.settings.max_input_size)
    for model, version in {(item.model, LATEST_VERSION) for item in making.items}:
        check_model(request.core, model, version)
    return await _created(request, making)


@dataclass(frozen=True, slots=True)
class _Making:
    """A job that is to be made."""

    items: Sequence[NewItem]
    model: str
    version: int = LATEST_VERSION
    timeout: float | None = None
    metadata: Mapping[str, str] | None = None
    source: JobSource | None = None
    webhook: Webhook | None = None

    @property
    def fingerprinted(self) -> str:
        """What it is beside its requests that makes it another job."""
        to = self.webhook
        return "" if to is None else f" {to.url} {','.join(sorted(to.states))}"


def _is_deferred(request: HttpRequest) -> bool:
    return request.services.jobs is not None and b"prefer" in request.headers and preferences_of(request).is_async


async def _infer_item(request: HttpRequest) -> NewItem:
    header_length = parse_header_length(request.headers.get(HEADER_LENGTH), len(request.body))
    decoded = await inference_handler.decode(request, header_length)
    inference = decoded.request
    if not request.services.forwarding.is_empty:
        inference_handler.forward_headers(request, inference)
    inference_handler.name_sequence(request, inference)
    refuse_placement(decoded.placement)
    _check(request, inference)
    encoding = decoded.encoding
    form = ResultForm(default_binary=encoding.default_binary, binary=dict(encoding.binary)).encode()
    return NewItem(inference.model_name, encode_request(inference), form=form)


async def _read_list(body: Buffer, max_input_size: int) -> _Making:
    """Raises what is wrong with the list, or with one of its requests."""
    if len(body) > JSON_SLICED_ABOVE:
        listed = await run_sliced(split_long_list(body))
        if listed is not None:
            making = await run_sliced(_making_of(listed, max_input_size, _LONG_ABOVE))
            if making is not None:
                return making
    return await _in_thread_if_long(lambda: _made_in_one_go(body, max_input_size), len(body))


def _made_in_one_go(body: Buffer, max_input_size: int) -> _Making:
    making = in_one_go(_making_of(read_job_list(body), max_input_size))
    assert making is not None  # nothing is long
    return making


def _making_of(listed: JobList, max_input_size: int, long_above: float = math.inf) -> Sliced[_Making | None]:
    """Pure. None where a request of more bytes cannot be read in slices. Raises what is wrong with one."""
    form = ResultForm(is_list=True).encode()
    items: list[NewItem] = []
    for index, text in enumerate(listed.requests):
        try:
            if len(memoryview(text)) > long_above:
                found = yield from read_long_listed(text, max_input_size)
                if found is None:
                    return None
                named, decoded = found
            else:
                named = read_listed_request(text)
                decoded = decode_infer_request(
                    memoryview(text),
                    None,
                    model_name=named.model_name,
                    model_version=named.version,
                    max_input_size=max_input_size,
                )
            refuse_placement(decoded.placement)
            refuse_sequence(decoded.request)
        except ServerError as error:
            error.message = f"requests[{index}]: {error.message}"
            raise
        items.append(NewItem(named.model_name, encode_request(decoded.request), named.custom_id, form))
        yield
    models = {item.model for item in items}
    return _Making(
        items,
        models.pop() if len(models) == 1 else "",
        timeout=listed.timeout,
        metadata=listed.checked_metadata(),
        webhook=listed.checked_webhook(),
    )


def _read_source(request: HttpRequest) -> _Making:
    """Raises what is wrong with the body, or with the model for it."""
    body = read_source_body(request.body)
    source = body.source()
    check_model(request.core, source.model, source.version)
    if source.output.format is not DataFormat.JSON_LINES:
        _refuse_decoupled(request, source)
    metadata, webhook = body.checked_metadata(), body.checked_webhook()
    return _Making((), source.model, source.version, body.timeout, metadata, source, webhook)


def _refuse_decoupled(request: HttpRequest, source: JobSource) -> None:
    with suppress(Unavailable):  # it will be known when it runs
        if request.core.is_decoupled(source.model, source.version):
            raise InvalidArgument(
                f"model '{source.model}' may give any number of responses to a row: expected 'output.format' "
                f"{DataFormat.JSON_LINES}, got {source.output.format}"
            )


def _check(request: HttpRequest, inference: InferenceRequest) -> None:
    """What can be known before it runs."""
    refuse_sequence(inference)
    check_model(request.core, inference.model_name, inference.model_version)


async def _deferred(request: HttpRequest, item: NewItem) -> Reply:
    """The result if it is there within the time that the client waits; else the job."""
    prefers = preferences_of(request)
    owner, key = request.caller, idempotency_key(request.headers)
    jobs = jobs_of(request)
    with jobs.answering(owner, key):
        webhook = webhook_of(read_query(request.query))
        making = _Making([item], request.model_name, request.model_version, webhook=webhook)
        job = await _add(request, making, owner, key)
        if prefers.wait:
            job = await jobs.wait(owner, job.id, prefers.wait)
        headers = (location(job), *applied(prefers))
        if not job.state.is_ended:
            return job_reply(job, 202, headers)
        reply = await result_reply(request, job)
        reply.headers = (*reply.headers, *headers)
        return reply


async def _created(request: HttpRequest, making: _Making) -> Reply:
    """The job: with status 202, or 200 where it has ended within the time that the client waits."""
    prefers = preferences_of(request)
    owner, key = request.caller, idempotency_key(request.headers)
    jobs = jobs_of(request)
    with jobs.answering(owner, key):
        job = await _add(request, making, owner, key)
        if prefers.wait:
            job = await jobs.wait(owner, job.id, prefers.wait)
    return job_reply(job, 200 if job.state.is_ended else 202, (location(job), *applied(prefers)))


async def _add(request: HttpRequest, making: _Making, owner: str, key: str) -> Job:
    jobs = jobs_of(request)
    now = jobs.now()
    await _charge(request, making)
    made = b""
    if key:
        form = making.items[0].form if making.items else b"source"
        what = f"{request.path_parameters} {form!r}{making.fingerprinted}"
        made = await _in_thread_if_long(
            partial(fingerprint, what, request.headers.get(HEADER_LENGTH), request.body), len(request.body)
        )
    job, _ = await jobs.add(
        NewJob(
            new_job_id(now),
            owner,
            making.items,
            deadline=now + min(making.timeout or jobs.max_seconds, jobs.max_seconds),
            model=making.model,
            version=making.version,
            metadata=making.metadata or {},
            key=key,
            fingerprint=made,
            source=making.source,
            webhook=making.webhook,
        )
    )
    return job


async def _charge(request: HttpRequest, making: _Making) -> None:
    """Each request of a list costs one, and each row of files when it is read; what it costs else is charged when it
    runs. Raises QuotaExceeded."""
    charge = request.charge
    if charge is None:
        return
    if "model_name" not in request.path_parameters and making.model:
        await charge.name_model_when_known(making.model)
    charge.settle(Unit.REQUESTS, len(making.items), taken=1)
    charge.goes_on = True


async def _in_thread_if_long(call: Callable[[], T], size: int) -> T:
    return await trio.to_thread.run_sync(call) if size > JSON_IN_THREAD_ABOVE else call()
