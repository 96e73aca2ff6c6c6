"""Access log entries of gRPC calls that were handled by a task, and of those that were refused."""

from __future__ import annotations

from protocol.errors import DeadlineExceeded, ServerError, text_of
from protocol.grpc.call.request_head import RequestHead
from protocol.grpc.call.stream import Stream
from protocol.grpc.status import code_of
from protocol.log.access_log import Ended
from protocol.log.call_origin import call_tags
from protocol.log.request_ids import RequestIds

OK = "OK"
CANCELLED = "CANCELLED"


def call_ended(stream: Stream, failure: Exception | None, *, is_cancelled: bool) -> Ended:
    """A call in a task that has ended; `is_cancelled` by its client."""
    described = stream.describe()
    return Ended(
        "grpc",
        stream.method.rpartition("/")[2],
        stream.method,
        status_word(failure, is_cancelled=is_cancelled),
        stream.origin.tags(described.id),
        own_id=described.id,
        model=described.model_name,
        version=described.model_version,
        client=stream.peer,
        bytes_in=stream.bytes_in,
        bytes_out=stream.bytes_out,
        is_cancelled=is_cancelled,
        error=error_text(failure),
        started_ns=stream.started_ns,
    )


def call_refused(head: RequestHead, error: ServerError, ids: RequestIds, peer: str) -> Ended:
    """A call that was refused by what its headers say, or since there was no place for it."""
    tags = call_tags(ids.of(head.client), head.client, "")
    method = head.method.rpartition("/")[2]
    return Ended("grpc", method, head.method, code_of(error).name, tags, client=peer, error=error.message)


def status_word(failure: Exception | None, *, is_cancelled: bool) -> str:
    if failure is not None:
        return code_of(failure).name
    return CANCELLED if is_cancelled else OK


def error_text(failure: Exception | None) -> str:
    if failure is None or isinstance(failure, DeadlineExceeded):
        return "" if failure is None else failure.message
    return failure.message if isinstance(failure, ServerError) else text_of(failure)
