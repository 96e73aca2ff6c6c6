"""`trioton.Jobs`: makes jobs, as long-running operations, and gives their results. An extension of ours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from grpclib.const import Cardinality, Handler

from protocol.grpc.call.stream import Stream
from protocol.grpc.codec.jobs import ListedRequest, decode_job
from protocol.grpc.services.job_calls import jobs_of, owner_of, send_operation
from protocol.grpc.services.operation_messages import item_parts, job_id_of
from protocol.jobs.admission import check_model
from protocol.jobs.job import new_job_id
from protocol.jobs.payload import encode_request
from protocol.jobs.result_form import ResultForm
from protocol.jobs.store import NewItem, NewJob
from protocol.jobs.webhook import Webhook, states_of
from protocol.messages import LATEST_VERSION
from protocol.proto import message_class
from protocol.quotas.accounts import Charge
from protocol.quotas.quota import Unit
from protocol.services import EdgeServices

SERVICE = "trioton.Jobs"

_IN_THREAD_ABOVE = 64 << 10
_ITEMS_AT_ONCE = 256


class JobsService:
    """The calls raise Unsupported where the server takes no jobs."""

    def __init__(self, services: EdgeServices) -> None:
        self._services = services

    def __mapping__(self) -> dict[str, Handler]:
        results = message_class("trioton.JobResultsRequest")
        return {
            f"/{SERVICE}/Create": Handler(self._create, Cardinality.UNARY_UNARY, memoryview, bytes),
            f"/{SERVICE}/Results": Handler(self._results, Cardinality.UNARY_STREAM, results, bytes),
        }

    async def _create(self, stream: Stream) -> None:
        if stream.account is None:
            await self._answer(stream, None)
            return
        charge = await stream.account.admit_when_known()
        try:
            await self._answer(stream, charge)
        finally:
            charge.end()

    async def _answer(self, stream: Stream, charge: Charge | None) -> None:
        data: memoryview = await stream.recv_message()
        jobs, owner = jobs_of(self._services), owner_of(self._services, stream)
        read = partial(_read, data)
        wanted = await trio.to_thread.run_sync(read) if len(data) > _IN_THREAD_ABOVE else read()
        for name, version in wanted.models:
            check_model(self._services.core, name, version)
        with jobs.answering(owner, wanted.key):
            now = jobs.now()
            new = _new_job(wanted, owner, now, now + min(wanted.timeout or jobs.max_seconds, jobs.max_seconds))
            await _charge(charge, new, len(data))
            job, _ = await jobs.add(new)
        await send_operation(stream, jobs, job)

    async def _results(self, stream: Stream) -> None:
        job_id = job_id_of((await stream.recv_message()).name)
        jobs = jobs_of(self._services)
        job = await jobs.find(owner_of(self._services, stream), job_id)
        index = 0
        while items := await jobs.items(job.id, index, _ITEMS_AT_ONCE, results=True):
            for item in items:
                await stream.send_message(item_parts(item))
                await trio.lowlevel.checkpoint()
            index = items[-1].index + 1


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A job that is asked for, checked as far as that can be done without the server."""

    items: Sequence[NewItem]
    models: Set[tuple[str, int]]
    timeout: float | None
    metadata: Mapping[str, str]
    webhook: Webhook | None
    key: str
    fingerprint: bytes


def _read(data: memoryview) -> _Wanted:
    """Pure. Raises InvalidArgument."""
    wanted = decode_job(data)
    message = wanted.message
    form = ResultForm(is_list=len(wanted.requests) > 1).encode()
    return _Wanted(
        [
            NewItem(each.request.model_name, encode_request(each.request), each.custom_id, form)
            for each in wanted.requests
        ],
        {(each.request.model_name, each.request.model_version) for each in wanted.requests},
        wanted.timeout,
        dict(message.metadata),
        _webhook(message),
        message.request_id,
        hashlib.sha256(data).digest() if message.request_id else b"",
    )


def _item(listed: ListedRequest, form: bytes) -> NewItem:
    return NewItem(listed.request.model_name, encode_request(listed.request), listed.custom_id, form)


def _webhook(message: Any) -> Webhook | None:
    if not message.HasField("webhook"):
        return None
    webhook = message.webhook
    return Webhook(webhook.url, "", states_of(webhook.events)) if webhook.events else Webhook(webhook.url, "")


def _new_job(wanted: _Wanted, owner: str, now: float, deadline: float) -> NewJob:
    models, versions = ({model[place] for model in wanted.models} for place in (0, 1))
    return NewJob(
        new_job_id(now),
        owner,
        wanted.items,
        deadline,
        model=str(models.pop()) if len(models) == 1 else "",
        version=int(versions.pop()) if len(versions) == 1 else LATEST_VERSION,
        metadata=wanted.metadata,
        key=wanted.key,
        fingerprint=wanted.fingerprint,
        webhook=wanted.webhook,
    )


async def _charge(charge: Charge | None, new: NewJob, size: int) -> None:
    """Each request costs one; what it costs else is charged when it runs. Raises QuotaExceeded."""
    if charge is None:
        return
    if new.model:
        await charge.name_model_when_known(new.model)
    charge.settle(Unit.BYTES, size)
    charge.settle(Unit.REQUESTS, len(new.items), taken=1)
    charge.goes_on = True
