"""`google.longrunning.Operations`: the caller's jobs as long-running operations, as Google's clients know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpclib.const import Cardinality, Handler

from protocol.errors import InvalidArgument
from protocol.grpc.call.stream import Stream
from protocol.grpc.services.job_calls import jobs_of, owner_of, send_operation
from protocol.grpc.services.operation_messages import COLLECTION, job_id_of, operation, read_filter
from protocol.jobs.job import Job
from protocol.proto import message_class
from protocol.services import EdgeServices
from protocol.sync.sliced import Sliced, run_sliced

SERVICE = "google.longrunning.Operations"

# As over HTTP.
_DEFAULT_PAGE, _MOST_PAGE = 20, 100
# However long a client would wait; its own deadline may end it before.
_MOST_WAIT_SECONDS = 600.0
_TYPES = "google.longrunning."


class OperationsService:
    """The calls raise Unsupported where the server takes no jobs, and NotFound for what is not the caller's."""

    def __init__(self, services: EdgeServices) -> None:
        self._services = services

    def __mapping__(self) -> dict[str, Handler]:
        empty, page = message_class("google.protobuf.Empty"), message_class(f"{_TYPES}ListOperationsResponse")
        calls: dict[str, tuple[Any, Any]] = {
            "GetOperation": (self._get, bytes),
            "WaitOperation": (self._wait, bytes),
            "ListOperations": (self._list, page),
            "CancelOperation": (self._cancel, empty),
            "DeleteOperation": (self._delete, empty),
        }
        unary = Cardinality.UNARY_UNARY
        return {
            f"/{SERVICE}/{name}": Handler(call, unary, message_class(f"{_TYPES}{name}Request"), reply)
            for name, (call, reply) in calls.items()
        }

    async def _get(self, stream: Stream) -> None:
        job_id = job_id_of((await stream.recv_message()).name)
        jobs = jobs_of(self._services)
        await send_operation(stream, jobs, await jobs.find(owner_of(self._services, stream), job_id))

    async def _wait(self, stream: Stream) -> None:
        request: Any = await stream.recv_message()
        seconds = _MOST_WAIT_SECONDS
        if request.HasField("timeout"):
            seconds = min(max(request.timeout.seconds + request.timeout.nanos / 1e9, 0.0), _MOST_WAIT_SECONDS)
        jobs = jobs_of(self._services)
        job = await jobs.wait(owner_of(self._services, stream), job_id_of(request.name), seconds)
        await send_operation(stream, jobs, job)

    async def _list(self, stream: Stream) -> None:
        request: Any = await stream.recv_message()
        if request.name not in ("", COLLECTION):
            raise InvalidArgument(f"'name': expected '{COLLECTION}', got '{request.name[:100]}'")
        if request.page_size < 0:
            raise InvalidArgument(f"'page_size': expected none that is negative, got {request.page_size}")
        limit = min(request.page_size or _DEFAULT_PAGE, _MOST_PAGE)
        owner, which = owner_of(self._services, stream), read_filter(request.filter)
        found = await jobs_of(self._services).jobs(owner, which, request.page_token, limit)
        await stream.send_message(await run_sliced(_page(found, limit)))

    async def _cancel(self, stream: Stream) -> None:
        job_id = job_id_of((await stream.recv_message()).name)
        await jobs_of(self._services).cancel(owner_of(self._services, stream), job_id)
        await stream.send_message(message_class("google.protobuf.Empty")())

    async def _delete(self, stream: Stream) -> None:
        job_id = job_id_of((await stream.recv_message()).name)
        await jobs_of(self._services).remove(owner_of(self._services, stream), job_id)
        await stream.send_message(message_class("google.protobuf.Empty")())


def _page(found: Sequence[Job], limit: int) -> Sliced[Any]:
    page: Any = message_class(f"{_TYPES}ListOperationsResponse")()
    for job in found:
        page.operations.append(operation(job, is_listed=True))
        yield
    if len(found) == limit:
        page.next_page_token = found[-1].id
    return page
